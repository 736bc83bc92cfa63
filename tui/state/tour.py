"""A walk through the views of a live run: lessons, each of which waits for what it asks the user to do."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

from ...engine.wire.events import Profiled


class Seen(Protocol):
    """The part of the run's state that goals are about; the state itself has the tour."""

    step: int
    preset: str
    followed: int | None
    profiled: Profiled | None


class Goal(NamedTuple):
    """What the user has to do to end a lesson."""

    kind: Literal["wait", "open", "switch", "follow", "profile", "visit", "leave"]
    name: str = ""
    """The view to open, the preset to switch to, or the page to visit, which lies over a view."""
    view: str = ""
    """The view from which that page is opened."""

    def is_met(self, view: str, state: Seen) -> bool:
        """`view`: the open one. A page is reported by `Tour.visit`, and only `Tour.skip` ends the last lesson."""
        match self.kind:
            case "wait":
                return state.step > 0
            case "open":
                return view == self.name
            case "switch":
                return state.preset == self.name
            case "follow":
                return state.followed is not None
            case "profile":
                return state.profiled is not None and state.profiled.breakdown is not None
            case "visit" | "leave":
                return False


@dataclass(frozen=True)
class Lesson:
    subject: str
    text: str
    goal: Goal


LESSONS = (
    Lesson(
        "The run",
        "An engine starts in a process of its own. It compiles one step of a small GPT for eight simulated devices.",
        Goal("wait"),
    ),
    Lesson(
        "The run",
        "Now it trains, and the chart shows the loss. Above it are the latest loss and the speed, on the left are "
        "the presets: ways to split the work and the arrays.",
        Goal("open", "arrays"),
    ),
    Lesson(
        "Data parallel",
        "Each row is an array of the training step. The run uses the preset dp, which splits only the batch: of each "
        "parameter, every device holds a copy, and the column of redundant bytes adds up the 7 extra ones.",
        Goal("open", "mesh"),
    ),
    Lesson(
        "Data parallel",
        "The mesh arranges the devices in a grid and names its axes. Here all eight lie along the axis data, and each "
        "one trains on an eighth of the batch.",
        Goal("follow"),
    ),
    Lesson(
        "Data parallel",
        "Arrays now marks what this device holds. It computes gradients from its own sequences, but to make the same "
        "update, all devices need the mean of all gradients.",
        Goal("open", "traffic"),
    ),
    Lesson(
        "Data parallel",
        "So the compiler inserted all-reduces of the gradients over data. Nobody wrote them: they follow from how the "
        "arrays are split.",
        Goal("open", "watch"),
    ),
    Lesson(
        "Fully sharded",
        "The preset fsdp splits the parameters, too: each device stores an eighth of each. The training need not stop "
        "for that: the new step is compiled while the old one trains.",
        Goal("switch", "fsdp"),
    ),
    Lesson(
        "Fully sharded",
        "The last switch has a receipt: the bytes moved between devices, the time without a step, and a digest of "
        "each array, equal before and after. The loss continues.",
        Goal("open", "arrays"),
    ),
    Lesson(
        "Fully sharded",
        "After @ stands a mesh axis: embed@fsdp means that the dim embed is split over fsdp. The pane shows which "
        "device holds which part, and the rule that decided it.",
        Goal("open", "traffic"),
    ),
    Lesson(
        "Fully sharded",
        "The price is traffic: before a layer is used, all-gathers over fsdp bring its parameters to every device, "
        "which drops them after it.",
        Goal("open", "watch"),
    ),
    Lesson(
        "Tensor parallel",
        "The preset tp splits the work of each layer: every device multiplies by its part of the weights, for the "
        "whole batch.",
        Goal("switch", "tp"),
    ),
    Lesson(
        "Tensor parallel",
        "Each device has some columns of the first kernel of the MLP, and the same rows of the second one. Their "
        "products are partial sums.",
        Goal("open", "traffic"),
    ),
    Lesson(
        "Tensor parallel",
        "All-reduces over model add them up. They carry activations of the whole batch, so tensor parallel is for "
        "layers too large for one device, on fast links.",
        Goal("open", "watch"),
    ),
    Lesson(
        "Several axes",
        "The preset fsdp-tp2 does both, on a mesh of 4 × 2: pairs of devices share a layer, and the four pairs store "
        "the parameters together.",
        Goal("switch", "fsdp-tp2"),
    ),
    Lesson(
        "Several axes",
        "Each collective now stays within a smaller group of devices: a row or a column of the mesh.",
        Goal("open", "mesh"),
    ),
    Lesson(
        "Where the time goes",
        "What does a step cost? The profiler measures how long each device computes, sends, and waits for others.",
        Goal("profile"),
    ),
    Lesson(
        "Where the time goes",
        "The parts add up to the step, for each device. Below are the operations with their source lines, and a step "
        "as it ran. Why is one of the collectives there at all?",
        Goal("visit", "origin", "traffic"),
    ),
    Lesson(
        "Memory",
        "Each chain ended at the rule or the line to change. Memory is traced back, too: its course over the step, and "
        "the arrays that fill it at the peak.",
        Goal("visit", "memory", "watch"),
    ),
    Lesson(
        "Pitfalls",
        "Not every layout that trains is a good one. The preset pitfall-same-axis has a mesh of 2 × 4, and a mistake "
        'that many make. Enter on "3 pitfalls", near the end of the list, shows it.',
        Goal("switch", "pitfall-same-axis"),
    ),
    Lesson(
        "Pitfalls", "The loss is right, as before: what is wrong shows only in the compiled step.", Goal("open", "lint")
    ),
    Lesson(
        "Pitfalls",
        "Batch and weights are split over the same axis, so the devices along the other one repeat each other's work. "
        "Each finding says how to avoid it, and enter opens its array or collective.",
        Goal("open", "rules"),
    ),
    Lesson(
        "Your own preset",
        "A preset is a mesh and rules: which mesh axes split which dim. ← and → change the rule under the cursor, the "
        "right side shows what each array becomes, and a switches the run to it.",
        Goal("open", "plan"),
    ),
    Lesson(
        "Hardware you do not have",
        "Type a TPU slice here, such as v5e:4x4, and see whether each preset would fit, and what a step would send. "
        "Compare measures presets in this run.",
        Goal("leave"),
    ),
)


@dataclass
class Tour:
    """Where the user is in the lessons."""

    lessons: Sequence[Lesson] = LESSONS
    position: int = 0

    @property
    def lesson(self) -> Lesson | None:
        return self.lessons[self.position] if self.position < len(self.lessons) else None

    def advance(self, view: str, state: Seen) -> None:
        """`view`: the open one."""
        while self.lesson and self.lesson.goal.is_met(view, state):
            self.position += 1

    def visit(self, page: str) -> None:
        """To be called when a page opens over a view."""
        if self.lesson and self.lesson.goal.kind == "visit" and self.lesson.goal.name == page:
            self.position += 1

    def skip(self) -> None:
        self.position += 1
