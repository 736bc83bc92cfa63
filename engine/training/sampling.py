"""Samples of text between steps, from the parameters as they are laid out: by command, and every so many steps."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from ..base.user_error import UserError
from ..distributed.outcomes import UNSUCCESSFUL
from ..models.task import TrainState
from ..parallel.constraints import activation_rules
from ..program.compiler_process import compiled_apart
from ..program.placement import Placement
from ..program.program import Program
from ..spec.config import MOST_SAMPLED, UserModel
from ..spec.preset import Preset, Rules
from ..wire.commands import SampleText
from ..wire.events import Sampled
from .progress import Progress
from .tools import Tools

NOT_BUILT_IN = "only the built-in model can be sampled: its tokens are bytes, which it is known to read"
BYTE_VALUES = 256
"""Tokens that are bytes; a larger vocabulary's other tokens are never sampled."""
OF_BATCHES = ("batch", "seq", "layers")
"""Logical axes that a single sequence is not split over."""


@dataclass(frozen=True)
class Sampler:
    """A compiled function that samples, for the layout of one preset."""

    run: Callable[..., jax.Array]
    """Parameters, tokens [1, T], their number, tokens to sample, temperature and seed to int32 [`MOST_SAMPLED`]."""
    seq_len: int
    """T: the positions that the model reads."""
    compile_seconds: float
    """Seconds that it took to compile."""

    def sample(self, state: TrainState, prompt: bytes, count: int, temperature: float, seed: int) -> bytes:
        """Returns `count` bytes that follow the prompt, of which the model reads the end that it has room for.

        Waits for the step in flight. Temperature 0 takes the most probable byte.
        """
        known = np.frombuffer(prompt[-self.seq_len :], np.uint8)
        tokens = np.zeros((1, self.seq_len), np.int32)
        tokens[0, : len(known)] = known
        numbers = np.int32(len(known)), np.int32(count), np.float32(temperature), np.uint32(seed)
        return bytes(np.asarray(self.run(state.params, tokens, *numbers))[:count].astype(np.uint8))


class TextSampler:
    """Samples text from the state that trains, which it does not change."""

    def __init__(self, tools: Tools) -> None:
        self.tools = tools
        self._compiled: tuple[str, Sampler] | None = None
        """The last sampler, and the preset that it is for."""

    def sample_if_due(self, at: Progress) -> None:
        """Samples after every N steps, if the run is to. Call it once after each step, in all processes."""
        every = self.tools.config.sampling
        if every and every.every_steps and at.begun % every.every_steps == 0:
            self.sample(at, SampleText(0, every))

    def sample(self, at: Progress, command: SampleText) -> None:
        """Samples as the command says; the time that it takes counts for no step. Reports why if it fails."""
        at.reports.flush()
        began = time.perf_counter()
        text, compiled, problem = "", 0.0, None
        try:
            if isinstance(self.tools.config.model, UserModel):
                raise UserError(NOT_BUILT_IN)
            sampler, compiled = self.tools.cluster.run_on_all(lambda: self._sampler(at.program))
            asked, prompt = command.sampling, command.sampling.prompt.encode() or b"\n"
            found = self.tools.cluster.run_on_all(
                lambda: sampler.sample(at.state, prompt, asked.tokens, asked.temperature, asked.seed),
                has_collectives=True,
            )
            text = found.decode(errors="replace")
        except UNSUCCESSFUL as error:  # training continues without it
            problem = "; ".join(error.problems)
        seconds = time.perf_counter() - began - compiled
        self.tools.publish(
            Sampled(
                step=at.done,
                preset=at.program.name,
                number=command.number,
                sampling=command.sampling,
                text=text,
                seconds=seconds,
                compile_seconds=compiled,
                problem=problem,
            )
        )
        at.reports.restart_clock()

    def _sampler(self, program: Program) -> tuple[Sampler, float]:
        """Returns the sampler for a program's layout, and the seconds spent to compile it now."""
        if self._compiled and self._compiled[0] == program.name:
            return self._compiled[1], 0.0
        with compiled_apart():
            sampler = compile_sampler(program.placement)
        self._compiled = program.name, sampler
        return sampler, sampler.compile_seconds


def compile_sampler(placement: Placement) -> Sampler:
    """Compiles the sampler of a preset, for the built-in model. May be called in any thread.

    Each byte costs a forward pass over a whole sequence on every device that splits no layer with others: nothing is
    kept from one byte to the next.
    """
    began, seq_len = time.perf_counter(), placement.task.config.training.seq_len
    rules = _rules(placement.preset)
    replicated = NamedSharding(placement.mesh, PartitionSpec())

    def run(
        params: Any, tokens: jax.Array, length: jax.Array, count: jax.Array, heat: jax.Array, seed: jax.Array
    ) -> Any:
        def add(index: jax.Array, carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            tokens, sampled = carry
            is_full = length + index >= seq_len
            tokens = jnp.where(is_full, jnp.roll(tokens, -1, axis=1), tokens)
            at = jnp.minimum(length + index, seq_len - 1)
            logits = placement.task.logits(params, tokens)[0, at - 1, :BYTE_VALUES]
            key = jax.random.fold_in(jax.random.key(seed), index)
            warm = jax.random.categorical(key, logits / jnp.maximum(heat, 1e-6))
            chosen = jnp.where(heat > 0, warm, jnp.argmax(logits)).astype(jnp.int32)
            return tokens.at[0, at].set(chosen), sampled.at[index].set(chosen)

        start = tokens, jnp.zeros(MOST_SAMPLED, jnp.int32)
        return jax.lax.fori_loop(0, count, add, start)[1]

    params = placement.abstract_state.params
    numbers = [
        jax.ShapeDtypeStruct((), dtype, sharding=replicated) for dtype in ("int32", "int32", "float32", "uint32")
    ]
    tokens = jax.ShapeDtypeStruct((1, seq_len), jnp.int32, sharding=replicated)
    with jax.set_mesh(placement.mesh), activation_rules(placement.mesh, rules):
        compiled = jax.jit(run, out_shardings=replicated).lower(params, tokens, *numbers).compile()
    return Sampler(compiled, seq_len, time.perf_counter() - began)


def _rules(preset: Preset) -> Rules:
    """The rules for a single sequence: those that split its batch do not apply."""
    return {logical: splits for logical, splits in preset.rules.items() if logical not in OF_BATCHES}
