"""The views other than Watch, imported when they are first shown: the first frame does not wait for them."""

from collections.abc import Callable
from functools import partial
from importlib import import_module

from textual.screen import Screen

NAMES = ("arrays", "mesh", "traffic", "lint", "compare", "plan", "rules", "time", "log")


def view(name: str) -> Screen[None]:
    """Returns a new screen of a view, such as `ArraysScreen` of `screens/arrays.py`."""
    module = import_module(f".screens.{name}", __package__)
    screen: type[Screen[None]] = getattr(module, f"{name.capitalize()}Screen")
    return screen()


VIEWS: dict[str, Callable[[], Screen[None]]] = {name: partial(view, name) for name in NAMES}
"""Makes the screen of each view, by name."""
