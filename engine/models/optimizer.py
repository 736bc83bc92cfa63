"""The optimizer of a run, one of optax's, its learning rate schedule, and the layout of its state."""

from collections import Counter
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.sharding import AxisType

from ..parallel.rules import LogicalAxes
from ..spec.config import TrainingConfig
from .array import Array, name_of

Tree = Any
STACKED = ("layers", "experts", "qkv")
"""Logical axes along which a parameter holds several matrices, or several vectors."""
TABLES = ("vocab", "positions")
"""Logical axes of embedding tables, which Muon leaves to AdamW (Jordan et al. 2024, "Muon")."""
B2 = 0.95
"""Decay of AdamW's second moment, as in Brown et al. 2020, appendix B."""
MUON_RMS = 0.2
"""Root mean square of Muon's updates, about AdamW's, so that one learning rate and weight decay serve both (Liu et al.
2025, "Muon is Scalable for LLM Training", section 2.2)."""


def optimizer(config: TrainingConfig, logical_axes: Tree) -> optax.GradientTransformation:
    chain = optax.chain(optax.clip_by_global_norm(config.grad_clip), *_named(config, logical_axes))
    return _laid_out_by_compiler(chain) if config.optimizer == "muon" else chain


def _laid_out_by_compiler(chain: optax.GradientTransformation) -> optax.GradientTransformation:
    """Muon's products have no `out_sharding`: the compiler lays them out under explicit axis types, too."""

    def update(updates: Tree, state: Tree, params: Tree = None) -> tuple[Tree, Tree]:
        function: Any = chain.update
        if AxisType.Explicit in jax.sharding.get_abstract_mesh().axis_types:
            shardings = jax.tree.map(lambda leaf: jax.typeof(leaf).sharding, (params, state))
            function = jax.sharding.auto_axes(function, out_sharding=shardings)
        return function(updates, state, params)

    return optax.GradientTransformation(chain.init, update)


def learning_rate(config: TrainingConfig) -> optax.Schedule:
    """Returns the learning rate of a step by the number of steps before it."""
    highest, lowest = config.learning_rate, config.learning_rate * config.final_share
    warmup = max(1, config.warmup_steps)
    rise = optax.linear_schedule(0.0, highest, warmup)
    match config.schedule:
        case "constant":
            return lambda step: rise(step + 1)
        case "cosine":
            fall, begin = optax.cosine_decay_schedule(highest, config.decay_steps, config.final_share), warmup
        case "linear":
            fall, begin = optax.linear_schedule(highest, lowest, config.decay_steps), warmup
        case "warmup-stable-decay":
            fall, begin = optax.linear_schedule(highest, lowest, config.decay_steps), warmup + config.stable_steps
    schedule = optax.join_schedules([rise, fall], [begin])
    return lambda step: schedule(step + 1)


def rate_of_step(config: TrainingConfig | None, step: jax.Array, opt_state: Tree) -> jax.Array | None:
    """Returns the learning rate [] of the step after `step` others. Without a config, for a user's optimizer, the one
    that its state keeps (`optax.inject_hyperparams`); None if it keeps none."""
    if config is not None:
        return jnp.asarray(learning_rate(config)(step))
    kept = [value for _, value in optax.tree.get_all_with_path(opt_state, "learning_rate")]
    return kept[0] if kept and jnp.shape(kept[0]) == () else None


def _named(config: TrainingConfig, logical_axes: Tree) -> list[optax.GradientTransformation]:
    rate, decay = learning_rate(config), config.weight_decay
    dtype = None if config.moment_dtype == "auto" else config.moment_dtype
    mask = None if config.decay_mask == "all" else _map(lambda axes: len(_matrix_dims(axes)) > 1, logical_axes)
    match config.optimizer:
        case "adamw":
            return [optax.adamw(rate, b2=B2, mu_dtype=dtype, weight_decay=decay, mask=mask)]
        case "lion":
            return [optax.lion(rate, mu_dtype=dtype, weight_decay=decay, mask=mask)]
        case "adafactor":
            return [optax.adafactor(rate), _decay(config, mask)]
        case "muon":
            muon = optax.contrib.muon(
                rate,
                mu_dtype=dtype,
                adam_b2=B2,
                muon_weight_dimension_numbers=_map(_muon_dims, logical_axes),
                consistent_rms=MUON_RMS,
            )
            return [muon, _decay(config, mask)]


def _decay(config: TrainingConfig, mask: Tree) -> optax.GradientTransformation:
    """Decoupled weight decay for updates that are already scaled: optax's Adafactor would not scale it by the learning
    rate, and its Muon has no mask for the parameters of AdamW."""
    rate = learning_rate(config)
    return optax.add_decayed_weights(lambda step: -config.weight_decay * rate(step), mask)


def _map(function: Any, logical_axes: Tree) -> Tree:
    return jax.tree.map(function, logical_axes, is_leaf=lambda leaf: isinstance(leaf, tuple))


def _matrix_dims(logical_axes: LogicalAxes) -> list[list[int]]:
    """Returns the dims of each matrix in a parameter. `heads` and `head_dim` together are one dim of it."""
    found: list[list[int]] = []
    for index, logical in enumerate(logical_axes):
        if logical == "head_dim" and found and logical_axes[found[-1][-1]] == "heads":
            found[-1].append(index)
        elif logical not in STACKED:
            found.append([index])
    return found


def _muon_dims(logical_axes: LogicalAxes) -> optax.contrib.MuonDimensionNumbers | None:
    """Returns the input and output dims of a parameter's matrices; None if AdamW updates it."""
    dims = _matrix_dims(logical_axes)
    if len(dims) != 2 or set(TABLES) & set(logical_axes):
        return None
    return optax.contrib.MuonDimensionNumbers(*map(tuple, dims))


def describe_moments(opt_state: Tree, params: Tree) -> Tree:
    """Returns `opt_state` with an `Array` in place of every leaf, by the longest parameter path of `params` that ends
    its own. Names that would be equal get optax's chain indices."""
    counts = Counter(name_of(path) for path, _ in jax.tree.leaves_with_path(opt_state))
    owners = dict(jax.tree.leaves_with_path(params))

    def describe(path: Any, leaf: Any) -> Array:
        owner = next((owners[path[start:]] for start in range(len(path)) if path[start:] in owners), None)
        return _describe_moment(path, counts[name_of(path)] > 1, leaf, owner)

    return jax.tree_util.tree_map_with_path(describe, opt_state)


def _describe_moment(path: Any, with_indices: bool, leaf: Any, owner: Array | None) -> Array:
    axes = _moment_axes(path, leaf.shape, owner) if owner else None
    if owner is None or axes is None:
        name = f"opt_state{jax.tree_util.keystr(path)}"
        return Array((name,), "scalar", leaf.shape, leaf.dtype, (None,) * leaf.ndim)
    parameter = owner.names if leaf.shape == owner.shape else ()  # whose overrides name all its dims
    return Array((name_of(path, with_indices), *parameter), "moment", leaf.shape, leaf.dtype, axes)


def _moment_axes(path: tuple[Any, ...], shape: tuple[int, ...], owner: Array) -> LogicalAxes | None:
    """Returns the logical axes of an array of the optimizer's state that belongs to the parameter `owner`, None for
    another shape, such as a placeholder. Adafactor's means of a row and of a column lack its largest or second largest
    dim."""
    if shape == owner.shape:
        return owner.logical_axes
    keys = [getattr(key, "name", None) for key in path]
    if len(owner.shape) < 2 or not {"v_row", "v_col"} & set(keys):
        return None
    *_, second, largest = sorted(range(len(owner.shape)), key=lambda dim: owner.shape[dim])
    lacks = largest if "v_row" in keys else second
    kept = [dim for dim in range(len(owner.shape)) if dim != lacks]
    return tuple(owner.logical_axes[dim] for dim in kept) if shape == tuple(owner.shape[dim] for dim in kept) else None
