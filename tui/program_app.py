"""The UI over a program of the user's: `shardtui explain` in a terminal. There is no run."""

from collections.abc import Mapping
from typing import Any

from textual import work
from textual.screen import Screen

from ..engine.base.formatting import short_source
from ..engine.base.user_error import UserError
from ..engine.explain.explanation import ProgramRequest
from .base_app import SingleViewApp
from .client.explainer import explain_program
from .screens.program import ProgramScreen


class ProgramApp(SingleViewApp[UserError]):
    """Explains the program behind the first frame. It returns why that failed, if it did."""

    TITLE = "shardtui explain"

    def __init__(self, program: ProgramRequest, keymap: Mapping[str, str]) -> None:
        super().__init__(keymap)
        self.program = program

    def get_default_screen(self) -> Screen[Any]:
        return ProgramScreen(short_source(self.program.function.reference))

    def on_mount(self) -> None:
        self.explain()

    @work
    async def explain(self) -> None:
        """Explains the program in a process of its own, which ends with this app."""
        try:
            found = await explain_program(self.program)
        except UserError as error:
            self.exit(error)
            return
        screen = self.screen_stack[0]
        assert isinstance(screen, ProgramScreen)
        await screen.show_explanation(found)
