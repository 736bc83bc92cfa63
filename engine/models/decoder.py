"""The decoder in Flax NNX: blocks, stacked and scanned, with logical axes on every array.

Dims: B batch, T sequence, D embed, N heads, H head_dim, F mlp, E experts, C capacity, V vocab, L layers, G groups that
split the batch, S parts that split the sequence.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import msgspec
from flax import nnx
from jax.ad_checkpoint import checkpoint_name
from jax.typing import DTypeLike

from ..parallel.constraints import active_pipeline, constrain, gathered, out_sharding, resharded, shard, token_groups
from ..spec.config import RunConfig
from ..spec.model_config import KEPT, ModelConfig
from .array import Batch, Scalars, text_batch
from .attention_tiles import RESULT
from .blocks import Block, apply_dropout, example_indices, with_gathered_biases
from .layers import INIT_STDDEV, apply_norm, embed_norm
from .sizes import PLAIN, AttentionKernels, attention_kernels, compute_dtype, computed_scores, expert_matmul
from .stack import Apply, apply_stages, scan_layers, stack_keys, stack_stages

SAVED = "blocks.saved"
"""The name of a block's input, which every policy keeps."""


class Decoder(nnx.Module):
    """Maps tokens [B, T] to logits [B, T, V], V being `vocab_rows`. A key turns on dropout, of the embedding and of
    each residual branch."""

    def __init__(
        self, config: ModelConfig, dtype: DTypeLike, rngs: nnx.Rngs, kernels: AttentionKernels = PLAIN
    ) -> None:
        self.config = config
        self.token = _table(config, config.vocab_rows, "vocab", dtype, rngs)
        self.position = None if config.rope else _table(config, config.context, "positions", dtype, rngs)

        @nnx.split_rngs(splits=config.layers)
        @nnx.vmap(in_axes=0, out_axes=0, transform_metadata={nnx.PARTITION_NAME: "layers"})
        def stack(rngs: nnx.Rngs) -> Block:
            return Block(config, dtype, kernels, rngs)

        self.blocks = stack(rngs)
        self.norm = embed_norm(config, dtype, rngs)
        self.dropout = nnx.Dropout(config.dropout)
        self.output = None if config.tied else _table(config, config.vocab_rows, "vocab", dtype, rngs)

    def __call__(self, tokens: jax.Array, key: jax.Array | None = None) -> jax.Array:
        """Returns float32 logits [B, T, V] for tokens [B, T], -inf for padding rows."""
        return self.logits_and_balance(tokens, key)[0]

    def logits_and_balance(self, tokens: jax.Array, key: jax.Array | None) -> tuple[jax.Array, jax.Array | None]:
        """Returns the logits and the experts' balance loss, float32 []: summed over blocks, averaged over sequences;
        None without experts."""
        table = _replicate_per_group(self.token, "vocab", name="token.table")  # [G, S, V, D]
        positions = None
        if self.position is not None:
            positions = _replicate_per_group(self.position, "positions", name="position.table")
        embedding_key, blocks_key = (None, None) if key is None else jax.random.split(key)
        with jax.named_scope("embed"):
            x = _ungroup(self._embedding(tokens, table, positions), "activation_embed")
            x = shard(x, "batch", "seq", "activation_embed", name="embedding")
            x = apply_dropout(self.dropout, x, embedding_key, example_indices(x))
        with jax.named_scope("blocks"):
            keys = None if blocks_key is None else jax.random.split(blocks_key, self.config.layers)
            x, balance = self._apply_blocks(x, keys)
        with jax.named_scope("logits"):
            x = apply_norm(with_gathered_biases(self.norm), x, "norm")
            if self.output is not None:
                table = _replicate_per_group(self.output, "vocab", name="output.table")
            x = _group(x, table, "activation_embed")
            shape = *x.shape[:-1], table.shape[2]
            sharding = out_sharding(shape, "batch", "seq", None, None, "vocab")
            logits = jnp.einsum("GSBTD,GSVD->GSBTV", x, table, out_sharding=sharding).astype(jnp.float32)
            logits = _ungroup(logits, "vocab")  # [B, T, V]
            if cap := self.config.logit_cap:
                logits = cap * jnp.tanh(logits / cap)
            logits = shard(self._mask_padding(logits), "batch", "seq", "vocab", name="logits")
        return logits, None if balance is None else balance.sum(axis=0).mean()

    def _embedding(self, tokens: jax.Array, table: jax.Array, positions: jax.Array | None) -> jax.Array:
        """Looks tokens [B, T] up in tables [G, S, rows, D]; returns them in groups, [G, S, B ÷ G, T ÷ S, D]."""
        rows = _look_up(table, _group(tokens, table))
        if self.config.embed_scaled:
            rows *= jnp.asarray(self.config.embed**0.5, rows.dtype)
        if positions is None:
            return rows
        return rows + _look_up(positions, _position_indices(tokens.shape[1], positions))[:, :, None]

    def _apply_blocks(self, x: jax.Array, keys: jax.Array | None) -> tuple[jax.Array, jax.Array | None]:
        """Returns the residual stream and the experts' balance losses [L, B]; a pipeline has no experts."""
        pipeline = active_pipeline()
        if pipeline is None:
            return self._scan(self.blocks, x, keys, example_indices(x))
        graph, blocks = nnx.split(self.blocks)

        def stage(layers: tuple[nnx.State, jax.Array | None], x: jax.Array, examples: jax.Array) -> jax.Array:
            blocks, keys = layers
            with nnx.use_eager_sharding(False):
                return self._scan(nnx.merge(graph, blocks), x, keys, examples)[0]

        def in_stages(variable: nnx.Variable) -> nnx.Variable:
            _, *axes = variable.get_metadata()["out_sharding"]
            return variable.replace(stack_stages(variable.get_value(), pipeline, *axes))

        blocks = jax.tree.map(in_stages, blocks, is_leaf=lambda leaf: isinstance(leaf, nnx.Variable))
        layers = blocks, None if keys is None else stack_keys(keys, pipeline)
        return apply_stages(pipeline, stage, layers, x, _saved_of_stages(self.config.remat)), None

    def _scan(
        self, blocks: Block, x: jax.Array, keys: jax.Array | None, examples: jax.Array
    ) -> tuple[jax.Array, jax.Array | None]:
        bodies = tuple(map(self._body, self.config.local_layers))
        if not self.config.remat:
            return scan_layers(bodies, blocks, x, keys, examples)
        x, balance = scan_layers(bodies, blocks, resharded(x, "batch", "seq", "saved_embed"), keys, examples)
        return resharded(x, "batch", "seq", "activation_embed"), balance

    def _body(self, is_local: bool) -> Apply:
        def apply_block(
            block: Block, x: jax.Array, key: jax.Array | None, examples: jax.Array
        ) -> tuple[jax.Array, jax.Array | None]:
            return with_gathered_biases(block)(x, key, examples, is_local)

        def apply_and_save(
            block: Block, x: jax.Array, key: jax.Array | None, examples: jax.Array
        ) -> tuple[jax.Array, jax.Array | None]:
            # remat saves the input as it is here; where in the block it is gathered is left to the compiler
            x = shard(x, "batch", "seq", "saved_embed", name=SAVED)
            x = checkpoint_name(x, SAVED)
            x = resharded(x, "batch", "seq", "activation_embed")
            x, balance = apply_block(block, x, key, examples)
            return resharded(x, "batch", "seq", "saved_embed"), balance

        remat = self.config.remat
        if not remat:
            return apply_block
        return nnx.remat(apply_and_save, policy=None if remat in (True, "full") else _policy(remat))

    def _mask_padding(self, logits: jax.Array) -> jax.Array:
        if self.config.vocab_rows == self.config.vocab:
            return logits
        row = jax.lax.broadcasted_iota(jnp.int32, logits.shape, 2)
        return jnp.where(row < self.config.vocab, logits, -jnp.inf)


def _table(config: ModelConfig, rows: int, axis: str, dtype: DTypeLike, rngs: nnx.Rngs) -> nnx.Embed:
    table = nnx.initializers.normal(INIT_STDDEV)
    return nnx.Embed(
        rows, config.embed, dtype=dtype, embedding_init=nnx.with_partitioning(table, (axis, "embed")), rngs=rngs
    )


def _saved_of_stages(remat: bool | str) -> Callable[..., bool]:
    """Returns the policy of a pipeline's ticks. Stages choose their layers anew in each, so saving everything would
    keep a copy per tick. Without a remat policy all matmuls are saved, so that none runs twice."""
    policies = jax.checkpoint_policies
    if remat:
        return _policy(remat)
    return policies.save_from_both_policies(policies.dots_saveable, policies.save_only_these_names(RESULT))


def _replicate_per_group(embed: nnx.Embed, rows: str, name: str) -> jax.Array:
    """Returns a copy of a table for each group of tokens, [G, S, rows, D], unsharded over D as lookups need it. A group
    is one part of the batch and of the sequence, so each device holds one copy. Gradients are summed inside a group
    first: they cross the mesh once instead of once per use."""
    table = embed.embedding[...].astype(embed.dtype)
    shape, axes = (*token_groups(), *table.shape), ("batch", "seq", rows, "activation_embed")
    copies = jnp.broadcast_to(gathered(table, (rows, "embed")), shape, out_sharding=out_sharding(shape, *axes))
    return shard(copies, *axes, name=name)


def _group(x: jax.Array, tables: jax.Array, *rest_axes: str) -> jax.Array:
    """Reshapes [B, T, …] to [G, S, B ÷ G, T ÷ S, …], to match tables [G, S, rows, D]."""
    groups, parts = tables.shape[:2]
    batch, seq, *rest = x.shape
    shape = groups, batch // groups, parts, seq // parts, *rest
    return x.reshape(shape, out_sharding=out_sharding(shape, "batch", None, "seq", None, *rest_axes)).swapaxes(1, 2)


def _ungroup(x: jax.Array, *rest_axes: str) -> jax.Array:
    """Reshapes [G, S, B ÷ G, T ÷ S, …] to [B, T, …]."""
    groups, parts, batch, seq, *rest = x.shape
    shape = groups * batch, parts * seq, *rest
    return x.swapaxes(1, 2).reshape(shape, out_sharding=out_sharding(shape, "batch", "seq", *rest_axes))


def _position_indices(seq: int, tables: jax.Array) -> jax.Array:
    """Returns the positions of each group's tokens, [G, S, T ÷ S]."""
    groups, parts = tables.shape[:2]
    indices = jnp.broadcast_to(jnp.arange(seq).reshape(parts, -1), (groups, parts, seq // parts))
    return constrain(indices, "batch", "seq", None)


def _look_up(tables: jax.Array, rows: jax.Array) -> jax.Array:
    """Looks rows [G, S, …] up in each group's table [G, S, rows, D]; returns [G, S, …, D]."""
    sharding = out_sharding((*rows.shape[2:], tables.shape[-1]), *[None] * (rows.ndim - 2), "activation_embed")
    return jax.vmap(jax.vmap(lambda table, rows: table.at[rows].get(out_sharding=sharding)))(tables, rows)


def loss(logits: jax.Array, targets: jax.Array) -> jax.Array:
    """Returns the mean cross-entropy in nats per token, float32 [], of logits [B, T, V] for targets [B, T]. A
    comparison selects the target's logit, so that logits sharded over `vocab` are not gathered."""
    row = jax.lax.broadcasted_iota(jnp.int32, logits.shape, 2)
    chosen = jnp.sum(jnp.where(row == targets[..., None], logits, 0.0), axis=-1)
    return jnp.mean(jax.nn.logsumexp(logits, axis=-1) - chosen)


def z_loss(logits: jax.Array) -> jax.Array:
    """Returns the mean square of log-sum-exp, float32 [], of logits [B, T, V]: small if softmax is near normalised."""
    return jnp.mean(jnp.square(jax.nn.logsumexp(logits, axis=-1)))


def _policy(remat: str | bool) -> Callable[..., bool]:
    """Returns a remat policy of MaxText (0.2.5, `remat_policy`) for `jax.checkpoint`. True is `full`."""
    kept = () if isinstance(remat, bool) else KEPT[remat]
    return jax.checkpoint_policies.save_only_these_names(SAVED, *kept)


class BuiltIn:
    """The built-in decoder, with the same interface as `UserModule`."""

    def __init__(self, config: RunConfig, model: ModelConfig, platform: str) -> None:
        self._config = msgspec.structs.replace(model, expert_matmul=expert_matmul(model, platform))
        self._training = config.training
        self._seed = config.seed
        self.dtype: str = compute_dtype(model, platform)
        capability = getattr(jax.local_devices()[0], "compute_capability", "") if platform == "gpu" else ""
        self.attention_kernels = attention_kernels(model, platform, config.training.seq_len, capability)
        self.batch = text_batch(config.training.batch_size, config.training.seq_len)

    @property
    def padding_parameters(self) -> int:
        tables = 1 if self._config.tied else 2
        return tables * (self._config.vocab_rows - self._config.vocab) * self._config.embed

    @property
    def computed_scores(self) -> float:
        return computed_scores(self._config, self._training.seq_len)

    batches = None

    def optimizer(self) -> None:
        return None

    def module(self) -> Decoder:
        return Decoder(self._config, jnp.dtype(self.dtype), nnx.Rngs(self._seed), self.attention_kernels)

    def objective(self, module: Decoder, batch: Batch, key: jax.Array | None) -> tuple[jax.Array, Scalars]:
        """Returns the minimised value, and by name the scalars it is made of, each float32 []: `loss`, the mean
        cross-entropy, plus `balance` × the experts' `balance_loss` and `z_loss` × `z_loss`. Without a key there is no
        dropout."""
        logits, balance = module.logits_and_balance(batch.inputs, key if self._config.dropout else None)
        minimised = loss(logits, batch.targets)
        scalars = {"loss": minimised}
        if balance is not None:
            scalars["balance_loss"] = balance
            minimised += self._config.balance * balance
        if weight := self._training.z_loss:
            scalars["z_loss"] = z_loss(logits)
            minimised += weight * scalars["z_loss"]
        return minimised, scalars

    def held_out_loss(self, module: Decoder, batch: Batch) -> jax.Array:
        return self.objective(module, batch, None)[1]["loss"]
