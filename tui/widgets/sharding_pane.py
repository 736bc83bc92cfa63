"""The pane that draws an array's sharding; keys choose the dims that are drawn and move the cursor."""

from collections.abc import Mapping
from typing import Any, ClassVar

import msgspec
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.geometry import Size

from ...engine.hlo.layout import notation
from ...engine.wire.descriptions import ArrayInfo, MeshInfo
from ..bindings import identified
from ..messages import ShardChosen
from .lines import Lines, set_titles
from .sharding_picture import (
    Subject,
    cursor_line,
    draw_sharding,
    initial_subject,
    next_slice,
    size_summary,
    with_cursor_moved,
    with_next_dim,
)

MIN_HEIGHT_WITH_FOOTER = 5


class ShardingPane(Lines, can_focus=True):
    """A box for each shard with its devices, and below it the details of the shard under the cursor."""

    HELP = """\
## Sharding

Each box is a shard and the devices that hold it. **Arrows** move the cursor; the line below describes its shard: index
ranges, bytes and devices. **v** and **h** put another dim along the rows or columns, **,** and **.** step through
the remaining dims, **z** unfolds a grid that is larger than the pane, **f** follows the shard's first
device through every array (`◆`).
"""
    BINDING_GROUP_TITLE = "Sharding"
    BINDINGS: ClassVar[list[BindingType]] = identified(
        "sharding",
        [
            Binding("up", "move(-1, 0)", "Up", show=False),
            Binding("down", "move(1, 0)", "Down", show=False),
            Binding("left", "move(0, -1)", "Left", show=False),
            Binding("right", "move(0, 1)", "Right", show=False),
            ("v", "turn('rows')", "Rows"),
            ("h", "turn('columns')", "Columns"),
            Binding("comma", "slice(-1)", "Previous slice", show=False),
            ("full_stop", "slice(1)", "Slice"),
            ("z", "fold", "Unfold"),
        ],
    )

    def on_mount(self) -> None:
        self.border_title = "sharding"
        self.subject: Subject | None = None

    def show_array(
        self, array: ArrayInfo, mesh: MeshInfo, platform: str, followed: int | None, marks: Mapping[str, Any] = {}
    ) -> None:
        """Shows an array. For the same array as before, the dims and the cursor that the user chose are kept. `marks`:
        other fields of the subject."""
        old = self.subject
        subject = msgspec.structs.replace(initial_subject(array, mesh, platform), followed=followed, **marks)
        if old and old.array.name == array.name and len(old.array.shape) == len(array.shape):
            cursor = tuple(min(at, count - 1) for at, count in zip(old.cursor, subject.counts, strict=True))
            chosen = {"rows": old.rows, "columns": old.columns, "cursor": cursor, "folds": old.folds}
            subject = msgspec.structs.replace(subject, **chosen)
        if subject != old:
            self.set_subject(subject)

    def set_subject(self, subject: Subject) -> None:
        self.subject = subject
        self.show_title(subject)
        self.draw()
        self.post_message(ShardChosen(sorted(subject.holders.get(subject.cursor, []))))

    def show_title(self, subject: Subject) -> None:
        set_titles(self, subject.array.name + notation(subject.array), size_summary(subject.array, subject.mesh))

    def on_focus(self) -> None:
        self.draw()

    def on_blur(self) -> None:
        self.draw()

    def draw(self) -> None:
        if self.subject:
            width, height = self.picture_size
            footer = [cursor_line(self.subject, width, height)] if height < self.size.height else []
            self.show([*self.picture(self.subject, width, height), *footer])

    def picture(self, subject: Subject, width: int, height: int) -> list[Content]:
        return draw_sharding(subject, width, height, self.has_focus)

    @property
    def picture_size(self) -> Size:
        """The size without the line below, which a low pane does not have."""
        return self.size - Size(0, self.size.height > MIN_HEIGHT_WITH_FOOTER)

    def action_move(self, down: int, right: int) -> None:
        if self.subject:
            self.set_subject(with_cursor_moved(self.subject, down, right, *self.picture_size))

    def action_turn(self, direction: str) -> None:
        if self.subject:
            self.set_subject(with_next_dim(self.subject, direction))

    def action_slice(self, step: int) -> None:
        if self.subject:
            self.set_subject(next_slice(self.subject, step))

    def action_fold(self) -> None:
        if self.subject:
            self.set_subject(msgspec.structs.replace(self.subject, folds=not self.subject.folds))
