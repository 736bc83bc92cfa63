"""What a block keeps for its backward pass, by the remat policies of MaxText (0.2.5, `remat_policy`)."""

from collections.abc import Callable

import jax

from ..spec.model_config import KEPT, RematPolicy

SAVED = "blocks.saved"
"""The name of a block's input, which every policy keeps."""


def policy(remat: RematPolicy | bool) -> Callable[..., bool]:
    """Returns the policy for `jax.checkpoint`. True is `full`."""
    kept = () if isinstance(remat, bool) else KEPT[remat]
    return jax.checkpoint_policies.save_only_these_names(SAVED, *kept)
