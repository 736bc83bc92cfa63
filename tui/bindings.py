"""Key bindings with ids, under which a user's keys.toml gives them other keys."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, cast

from textual.app import App
from textual.binding import Binding, BindingType
from textual.widget import Widget


def identified(scope: str, bindings: Iterable[BindingType]) -> list[BindingType]:
    """Returns the bindings with ids such as `arrays.group`, of scope (empty for the app) and description."""
    prefix = f"{scope}." if scope else ""
    return [
        replace(binding, id=prefix + binding.description.lower().replace(" ", "-"))
        for binding in Binding.make_bindings(bindings)
    ]


def key_of(widget: Widget, action: str) -> str:
    """Returns the key of an action of the widget's view or of the app, as it is shown and as the user has set it.

    It does not depend on what has the focus or lies over the view. Raises KeyError if neither has such an action.
    """
    app = cast("App[Any]", widget.app)  # pyright: ignore[reportUnknownMemberType]
    found: dict[str, Binding] = {}
    for node in (widget.screen, app):
        bindings = node._bindings.copy()  # pyright: ignore[reportPrivateUsage] # Textual has no public way to either
        bindings.apply_keymap(app._keymap)  # pyright: ignore[reportPrivateUsage]
        for _, binding in sorted(bindings, key=lambda item: not item[1].show):
            found.setdefault(binding.action, binding)
    return app.get_key_display(found[action])
