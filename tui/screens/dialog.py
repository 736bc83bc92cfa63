"""What is shown over a view until it is answered."""

from typing import Generic, TypeVar

from textual.await_complete import AwaitComplete
from textual.screen import ModalScreen

T = TypeVar("T")


class Dialog(ModalScreen[T], Generic[T]):
    def dismiss(self, result: T | None = None) -> AwaitComplete:
        """Once: Textual takes away whichever screen is on top, however often it is told to."""
        return super().dismiss(result) if self.is_active else AwaitComplete()
