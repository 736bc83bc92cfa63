"""Events of an external loop, and of a watched program."""

from msgspec import Struct

from ..base import formatting
from .event import Event, Level


class LossNotFinite(Event, frozen=True):
    """The loss of an external loop's step is NaN or infinite; those of the steps before were not."""

    LEVEL = Level.WARNING

    step: int
    """Number of the step."""

    @property
    def line(self) -> str:
        return f"step {self.step:,}: the loss is not finite"


class Printed(Event, frozen=True):
    """A watched program has printed lines, and its output is kept in the run's directory."""

    LEVEL = Level.DETAIL

    lines: list[str]
    """The last lines, at most 20, each without what is beyond 500 characters."""
    left_out: int
    """Number of lines before them that are not here."""

    @property
    def line(self) -> str:
        before = f"… {formatting.counted(self.left_out, 'line')} … " if self.left_out else ""
        return before + " ⏎ ".join(self.lines)


class FunctionCalls(Struct, frozen=True):
    """The calls of a jitted function of a watched program."""

    name: str
    """Qualified name of the function, or name of a program compiled ahead."""
    calls: int
    """Number of calls."""
    seconds: float
    """Seconds until all of them had returned; devices may have gone on."""
    bytes: int
    """Largest bytes of its arguments' arrays, among the calls that were looked at."""

    @property
    def words(self) -> str:
        calls = formatting.counted(self.calls, "call")
        return f"{self.name} ({calls}, {formatting.seconds(self.seconds)}, {formatting.size(self.bytes)})"


class StepFound(Event, frozen=True):
    """A function of a watched program is its step, the first or another one; and at the end of the program."""

    step: FunctionCalls
    """The function that is the step."""
    others: list[FunctionCalls]
    """The other functions, the one with the largest arguments first; at most 20."""

    @property
    def line(self) -> str:
        others = "; ".join(each.words for each in self.others)
        return f"the step is {self.step.words}" + (f"; also jitted: {others}" if others else "")
