"""A walk through the views of a live run: lessons, each of which waits for what it asks the user to do."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple


class Seen(NamedTuple):
    view: str
    preset: str
    step: int
    followed: int | None
    is_profiled: bool


@dataclass(frozen=True)
class Wait:
    def is_met(self, seen: Seen) -> bool:
        return seen.step > 0


@dataclass(frozen=True)
class Open:
    view: str

    def is_met(self, seen: Seen) -> bool:
        return seen.view == self.view


@dataclass(frozen=True)
class SwitchTo:
    preset: str

    def is_met(self, seen: Seen) -> bool:
        return seen.preset == self.preset


@dataclass(frozen=True)
class Follow:
    def is_met(self, seen: Seen) -> bool:
        return seen.followed is not None


@dataclass(frozen=True)
class Profile:
    def is_met(self, seen: Seen) -> bool:
        return seen.is_profiled


@dataclass(frozen=True)
class Visit:
    """A page that lies over a view."""

    page: Literal["memory", "origin"]
    view: str
    """The view from which it is opened."""

    def is_met(self, seen: Seen) -> bool:
        return False


@dataclass(frozen=True)
class Leave:
    def is_met(self, seen: Seen) -> bool:
        return False


Goal = Wait | Open | SwitchTo | Follow | Profile | Visit | Leave


@dataclass(frozen=True)
class Lesson:
    subject: str
    text: str
    goal: Goal


LESSONS = (
    Lesson(
        "The run",
        "An engine starts in a process of its own. It compiles one step of a small GPT for eight simulated devices.",
        Wait(),
    ),
    Lesson(
        "The run",
        "Now it trains, and the chart shows the loss. Above it are the latest loss and the speed, on the left are "
        "the presets: ways to split the work and the arrays.",
        Open("arrays"),
    ),
    Lesson(
        "Data parallel",
        "Each row is an array of the training step. The run uses the preset dp, which splits only the batch: of each "
        "parameter, every device holds a copy, and the column of redundant bytes adds up the 7 extra ones.",
        Open("mesh"),
    ),
    Lesson(
        "Data parallel",
        "The mesh arranges the devices in a grid and names its axes. Here all eight lie along the axis data, and each "
        "one trains on an eighth of the batch.",
        Follow(),
    ),
    Lesson(
        "Data parallel",
        "Arrays now marks what this device holds. It computes gradients from its own sequences, but to make the same "
        "update, all devices need the mean of all gradients.",
        Open("traffic"),
    ),
    Lesson(
        "Data parallel",
        "So the compiler inserted all-reduces of the gradients over data. Nobody wrote them: they follow from how the "
        "arrays are split.",
        Open("watch"),
    ),
    Lesson(
        "Fully sharded",
        "The preset fsdp splits the parameters, too: each device stores an eighth of each. The training need not stop "
        "for that: the new step is compiled while the old one trains.",
        SwitchTo("fsdp"),
    ),
    Lesson(
        "Fully sharded",
        "The last switch has a receipt: the bytes moved between devices, the time without a step, and a digest of "
        "each array, equal before and after. The loss continues.",
        Open("arrays"),
    ),
    Lesson(
        "Fully sharded",
        "After @ stands a mesh axis: embed@fsdp means that the dim embed is split over fsdp. The pane shows which "
        "device holds which part, and the rule that decided it.",
        Open("traffic"),
    ),
    Lesson(
        "Fully sharded",
        "The price is traffic: before a layer is used, all-gathers over fsdp bring its parameters to every device, "
        "which drops them after it.",
        Open("watch"),
    ),
    Lesson(
        "Tensor parallel",
        "The preset tp splits the work of each layer: every device multiplies by its part of the weights, for the "
        "whole batch.",
        SwitchTo("tp"),
    ),
    Lesson(
        "Tensor parallel",
        "Each device has some columns of the first kernel of the MLP, and the same rows of the second one. Their "
        "products are partial sums.",
        Open("traffic"),
    ),
    Lesson(
        "Tensor parallel",
        "All-reduces over model add them up. They carry activations of the whole batch, so tensor parallel is for "
        "layers too large for one device, on fast links.",
        Open("watch"),
    ),
    Lesson(
        "Several axes",
        "The preset fsdp-tp2 does both, on a mesh of 4 × 2: pairs of devices share a layer, and the four pairs store "
        "the parameters together.",
        SwitchTo("fsdp-tp2"),
    ),
    Lesson(
        "Several axes",
        "Each collective now stays within a smaller group of devices: a row or a column of the mesh.",
        Open("mesh"),
    ),
    Lesson(
        "Where the time goes",
        "What does a step cost? The profiler measures how long each device computes, sends, and waits for others.",
        Profile(),
    ),
    Lesson(
        "Where the time goes",
        "The parts add up to the step, for each device. Below are the operations with their source lines, and a step "
        "as it ran. Why is one of the collectives there at all?",
        Visit("origin", "traffic"),
    ),
    Lesson(
        "Memory",
        "Each chain ended at the rule or the line to change. Memory is traced back, too: its course over the step, and "
        "the arrays that fill it at the peak.",
        Visit("memory", "watch"),
    ),
    Lesson(
        "Pitfalls",
        "Not every layout that trains is a good one. The preset pitfall-same-axis has a mesh of 2 × 4, and a mistake "
        'that many make. Enter on "3 pitfalls", near the end of the list, shows it.',
        SwitchTo("pitfall-same-axis"),
    ),
    Lesson("Pitfalls", "The loss is right, as before: what is wrong shows only in the compiled step.", Open("lint")),
    Lesson(
        "Pitfalls",
        "Batch and weights are split over the same axis, so the devices along the other one repeat each other's work. "
        "Each finding says how to avoid it, and enter opens its array or collective.",
        Open("rules"),
    ),
    Lesson(
        "Your own preset",
        "A preset is a mesh and rules: which mesh axes split which dim. ← and → change the rule under the cursor, the "
        "right side shows what each array becomes, and a switches the run to it.",
        Open("plan"),
    ),
    Lesson(
        "Hardware you do not have",
        "Type a TPU slice here, such as v5e:4x4, and see whether each preset would fit, and what a step would send. "
        "Compare measures presets in this run.",
        Leave(),
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

    def advance(self, seen: Seen) -> None:
        while self.lesson and self.lesson.goal.is_met(seen):
            self.position += 1

    def visit(self, page: str) -> None:
        """To be called when a page opens over a view."""
        if self.lesson and isinstance(self.lesson.goal, Visit) and self.lesson.goal.page == page:
            self.position += 1

    def skip(self) -> None:
        self.position += 1
