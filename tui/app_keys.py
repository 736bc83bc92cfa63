"""The key bindings that every view has, and the views. The footer and the help show the keys that do something now."""

from collections.abc import Callable
from functools import partial
from importlib import import_module

from textual.binding import Binding, BindingType
from textual.screen import Screen

from .bindings import identified
from .screens.run_screen import actions_by_key
from .widgets.tab_bar import TABS

KEYS: list[BindingType] = [
    *(Binding(tab.key, tab.action, tab.title, show=False) for tab in TABS),
    *identified(
        "",
        [
            ("space", "pause", "Pause"),
            Binding("right_square_bracket", "speed(2)", "Speed", key_display="[]"),
            Binding("left_square_bracket", "speed(0.5)", "Slower", show=False),
            ("s", "step", "Step"),
            ("p", "profile", "Profile"),
            ("c", "checkpoints", "Checkpoints"),
            Binding("w", "save", "Save now", show=False),
            Binding("r", "restart", "Restart", show=False),
            ("r", "resume", "Resume"),
            ("d", "detach", "Detach"),
            Binding("q,ctrl+q", "detach", "Detach", show=False),
            ("E", "experts", "Experts"),
            ("N", "nonfinite", "First NaN"),
            ("x", "stop", "End run"),
            Binding("e", "export", "Export", show=False),
            Binding("ctrl+n", "skip_lesson", "Next lesson", show=False, tooltip="Next lesson of a tour"),
            Binding("question_mark", "help", "Help", show=False),
        ],
    ),
]

PROFILE_STEPS = 5
"""Steps in a trace that is requested by a key or in the palette."""
ACTIONS = actions_by_key(KEYS)
"""Action by key."""


NAMES = ("arrays", "mesh", "traffic", "lint", "compare", "plan", "rules", "time", "log", "experts")


def view(name: str) -> Screen[None]:
    """Returns a new screen of a view, such as `ArraysScreen` of `screens/arrays.py`."""
    module = import_module(f".screens.{name}", __package__)
    screen: type[Screen[None]] = getattr(module, f"{name.capitalize()}Screen")
    return screen()


VIEWS: dict[str, str | Callable[[], Screen[None]]] = {name: partial(view, name) for name in NAMES}
"""Makes the screen of each view, by name."""
