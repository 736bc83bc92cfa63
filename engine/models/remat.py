"""What a block keeps for its backward pass, by the remat policies of MaxText (0.2.5, `remat_policy`)."""

from collections.abc import Callable

import jax

from ..spec.model_config import RematPolicy

SAVED = "blocks.saved"
"""The name of a block's input, which every policy keeps."""
PROJECTIONS = ("qkv_proj", "out_proj")
"""Names of the results of attention's two matmuls."""

KEPT: dict[RematPolicy, tuple[str, ...]] = {
    "full": (),
    "save_qkv_proj": ("qkv_proj",),
    "save_out_proj": ("out_proj",),
    "save_dot_except_mlp": PROJECTIONS,
    "save_dot_with_context_except_mlp": (*PROJECTIONS, "context"),
    "save_dot_except_mlpwi": (*PROJECTIONS, "mlpwo"),
    "minimal": (*PROJECTIONS, "mlpwi", "mlpwo"),
    "minimal_with_context": (*PROJECTIONS, "mlpwi", "mlpwo", "context"),
}
"""The named activations that a policy keeps besides the input: `context` is attention's result, `mlpwi` and `mlpwo` are
those of the MLP's matmuls."""


def policy(remat: RematPolicy | bool) -> Callable[..., bool]:
    """Returns the policy for `jax.checkpoint`. True is `full`."""
    kept = () if isinstance(remat, bool) else KEPT[remat]
    return jax.checkpoint_policies.save_only_these_names(SAVED, *kept)
