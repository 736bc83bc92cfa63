"""Programs explained and compiled: what the estimate says, what the CPU's compiler makes of it."""

from dataclasses import dataclass

import jax
from jax.sharding import AxisType
from shardtui.engine.base import formatting
from shardtui.engine.explain.compiled import with_compiled
from shardtui.engine.explain.explain import explain
from shardtui.engine.explain.explanation import UNKNOWN, Explanation, by_flow

from .explain.programs.layers import PROGRAMS
from .lax_programs import program

Flows = dict[tuple[str, tuple[str, ...]], int]


@dataclass(frozen=True)
class Answer:
    program: str
    explanation: Explanation

    @property
    def estimated(self) -> Flows:
        return by_flow(self.explanation.collectives)

    @property
    def found(self) -> Flows:
        compiled = self.explanation.compiled
        return by_flow(compiled.collectives or ()) if compiled else {}

    @property
    def is_equal(self) -> bool:
        """In kinds and mesh axes."""
        return self.estimated.keys() == self.found.keys()

    @property
    def is_unknown(self) -> bool:
        return any(each.kind == UNKNOWN for each in self.explanation.collectives)

    @property
    def wrong(self) -> list[str]:
        """What is answered wrongly in silence."""
        silent = [] if self.is_equal or self.is_unknown else [(_words(self.estimated), _words(self.found))]
        layouts = [
            (f"{each.name} as {each.layout}", formatting.spec(each.compiled_axes))
            for each in self.explanation.values
            if each.compiled_axes is not None and each.compiled_axes != each.axes
        ]
        return [f"estimated {estimated}; compiled {compiled}" for estimated, compiled in (*silent, *layouts)]


def answer(lowered: jax.stages.Lowered, name: str) -> Answer:
    return Answer(name, with_compiled(lowered, explain(lowered.compiler_ir("stablehlo"), name), "cpu"))


def random_answer(seed: int) -> Answer:
    random = program(seed)
    return answer(random.lowered(), random.summary)


def library_answer(name: str) -> Answer:
    with jax.set_mesh(jax.make_mesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)):
        return answer(PROGRAMS[name](), name)


def _words(flows: Flows) -> str:
    return ", ".join(f"{kind} over {formatting.over(axes)}" for kind, axes in sorted(flows)) or "none"
