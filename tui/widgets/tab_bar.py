"""The views as tabs: the top line of every view."""

from typing import NamedTuple

from textual.content import Content

from .lines import Lines


class Tab(NamedTuple):
    """A view as the tab bar shows it."""

    key: str
    title: str

    @property
    def action(self) -> str:
        """The app's action that opens it. Rules opens with a preset to edit."""
        return "edit_rules" if self.title == "Rules" else f"switch_mode('{self.title.lower()}')"


TITLES = ("Watch", "Arrays", "Mesh", "Traffic", "Lint", "Compare", "Plan", "Rules", "Time", "Log")
TABS = tuple(Tab(str(number % 10), title) for number, title in enumerate(TITLES, 1))


class TabBar(Lines):
    """A tab for each view, lit for the open one. A click opens a view."""

    DEFAULT_CSS = """
    TabBar { background: $panel; }
    """

    def __init__(self, title: str) -> None:
        """`title`: the tab of the view that this bar is in."""
        super().__init__()
        self.title = title

    def draw(self) -> None:
        self.show([tab_line(self.title, self.size.width)])


def tab_line(active: str, width: int) -> Content:
    """Returns the tabs, with as much space and as many titles as fit `width`; the active one always has its title."""
    for gap, pad, with_titles in ((" ", " ", True), ("", " ", True), (" ", "", True), (" ", "", False)):
        labels = (_label(tab, pad, tab.title == active, with_titles or tab.title == active) for tab in TABS)
        line = Content(gap).join(labels)
        if line.cell_length <= width:
            break
    return line


def _label(tab: Tab, pad: str, is_active: bool, with_title: bool) -> Content:
    pad = pad or " " * is_active
    text = Content(f"{pad}{tab.key}{f' {tab.title}' if with_title else ''}{pad}")
    style = "bold $text on $primary" if is_active else "$text-muted"
    return text.stylize(style).stylize(f"@click=app.{tab.action}")
