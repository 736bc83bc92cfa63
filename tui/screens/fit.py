"""A dialog that compiles what may make a preset fit that is too large for the planned devices."""

import time
from typing import ClassVar

from rich.text import Text
from textual import on, work
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical
from textual.worker import Worker

from ...engine.planning.fitting import Fit
from ..client.fitter import Fitter
from ..state.fit_words import COLUMNS, change, conclusion, ordered, problems, trial_cells
from ..terminal.clean import clean, printable
from ..widgets.memory_at_peak import WIDE_FROM
from ..widgets.paragraphs import Paragraphs
from ..widgets.table import Table, right
from .dialog import Dialog
from .memory import MemoryScreen

NARROW = ("change", "fits", "peak", "tokens/s")
"""Columns in a narrow terminal."""
STYLES = {"fits": "green", "too large": "yellow", "not compiled": "dim"}


class FitScreen(Dialog[None]):
    """A table of the changes, which grows while they are compiled. Closing it cancels the rest."""

    BINDINGS: ClassVar[list[BindingType]] = [
        ("m", "memory", "Memory"),
        ("k", "stop", "Cancel"),
        ("escape,q", "dismiss", "Close"),
    ]

    def __init__(self, preset: str, fitter: Fitter) -> None:
        super().__init__()
        self.preset, self.fitter = preset, fitter
        self.table = Table()
        self.worker: Worker[None] | None = None

    def compose(self) -> ComposeResult:
        with Vertical() as box:
            box.border_title = f"{self.preset} does not fit: what would"
            box.border_subtitle = "m memory · k cancel · esc back"
            yield self.table
            yield Paragraphs()

    def on_mount(self) -> None:
        self.table.rows.focus()
        self.worker = self.follow()
        self.clock = self.set_interval(1.0, self.show_note)
        self.show_note()

    @work(exclusive=True)
    async def follow(self) -> None:
        """Shows each trial when it is compiled. If it is cancelled, the compiler's process is killed."""
        async for fit in self.fitter.fits():
            self.show_fit(clean(fit))

    def show_fit(self, fit: Fit) -> None:
        """Draws the trials again."""
        columns = COLUMNS if self.size.width >= WIDE_FROM else NARROW
        rows = {str(at): trial_cells(trial, fit) for at, trial in enumerate(ordered(fit))} if fit.trials else {}
        styled = {
            key: {name: right(cell) for name, cell in cells.items()}
            | {"change": Text(cells["change"], "bold"), "fits": Text(cells["fits"], STYLES[cells["fits"]])}
            for key, cells in rows.items()
        }
        self.table.show_rows(columns, {key: [cells[name] for name in columns] for key, cells in styled.items()})
        self.show_note()

    def show_note(self) -> None:
        """Says what is being compiled, and what is known so far."""
        fit = self.fitter.fit
        texts = [(self.status, "$warning" if self.fitter.trying else "$foreground 60%")]
        if fit.trials:
            texts += [(f"→ {words}", "bold") for words in [conclusion(fit)] if words]
            texts += [(printable(line), "$warning") for line in problems(fit)]
        self.query_one(Paragraphs).show_texts(texts)

    @property
    def status(self) -> str:
        """What is being compiled and for how long, or that nothing more is."""
        if trying := self.fitter.trying:
            first = self.fitter.fit.trials[0] if self.fitter.fit.trials else trying.trial
            seconds = int(time.monotonic() - trying.began)
            if trying.process.is_waiting:
                return f"waiting for other plans, {seconds} s, program {trying.number}"
            return f"compiling {printable(change(trying.trial, first))}, {seconds} s, program {trying.number}"
        if self.worker is None or not self.worker.is_finished:
            return "choosing what to compile …"
        return "cancelled" if self.worker.is_cancelled else "all compiled; peaks are the compiler's, times a roofline"

    def action_stop(self) -> None:
        """Cancels what is still to be compiled."""
        if self.worker:
            self.worker.cancel()

    def action_memory(self) -> None:
        """Shows what fills the memory with the largest batch that fits."""
        fit = self.fitter.fit
        if fit.at_peak and (size := fit.largest_batch):
            subject = f"{self.preset}, batch_size={size}"
            self.app.push_screen(MemoryScreen(subject, fit.at_peak, clean(fit).peak_buffers, fit.batches[size]))  # pyright: ignore[reportUnknownMemberType]
        else:
            self.notify("what fills the memory is known once a batch size that fits is compiled", markup=False)

    @on(Worker.StateChanged)
    def show_end(self) -> None:
        self.show_note()
