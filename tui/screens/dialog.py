"""Dialogs: modal screens that stay on top of a view until they are answered."""

from typing import Generic, TypeVar

from textual.await_complete import AwaitComplete
from textual.screen import ModalScreen

from .base_screen import BaseScreen

T = TypeVar("T")


class Dialog(BaseScreen[T], ModalScreen[T], Generic[T]):
    """A box in the middle of the view, whose result is a `T`, or None if it was closed."""

    def dismiss(self, result: T | None = None) -> AwaitComplete:
        """Closes this dialog. A second call does nothing: Textual would pop whichever screen is on top."""
        return super().dismiss(result) if self.is_active else AwaitComplete()
