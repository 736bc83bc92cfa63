"""The present lesson of a tour: what to read, and the key to press then."""

from ..bindings import key_of
from ..state.tour import Goal, Tour
from .lines import Paragraphs
from .tab_bar import TABS

TABS_BY_VIEW = {tab.title.lower(): tab for tab in TABS}


class TourStrip(Paragraphs):
    """A few lines below the status bar; nothing once the tour is over."""

    DEFAULT_CSS = """
    TourStrip {
        box-sizing: content-box; padding: 0 1; background: $boost; border-left: outer $primary;
    }
    """

    def show_tour(self, tour: Tour, view: str) -> None:
        """Shows the present lesson. `view`: the open one."""
        lesson = tour.lesson
        self.display = lesson is not None
        if lesson is None:
            return
        request = self.request(lesson.goal, view)
        if lesson.goal.kind != "leave":
            request += f" ({tour.position + 1} of {len(tour.lessons)}, {key_of(self, 'skip_lesson')} skips)"
        self.show_texts([(f"{lesson.subject}: {lesson.text}", ""), (request, "bold $primary")])

    def request(self, goal: Goal, view: str) -> str:
        """Returns what the user is asked to do."""
        match goal:
            case Goal("wait"):
                return "This takes some seconds."
            case Goal("open", wanted):
                return f"Press {self.key_of_view(wanted)}."
            case Goal("switch", preset) if view == "watch":
                return f"Move the cursor to {preset} and press enter."
            case Goal("switch", preset):
                return f"Press {self.key_of_view('watch')}, move the cursor to {preset} and press enter."
            case Goal("follow") if view == "mesh":
                return f"Press {key_of(self, 'follow')} to follow the device under the cursor."
            case Goal("follow"):
                return f"Press {self.key_of_view('mesh')}."
            case Goal("profile"):
                return f"Press {key_of(self, 'profile')} to trace five steps. This takes some seconds."
            case Goal("visit", _, wanted) if view != wanted:
                return f"Press {self.key_of_view(wanted)}."
            case Goal("visit", "memory"):
                return f"Press {key_of(self, 'memory')}, and escape to come back."
            case Goal("visit"):
                return "Press enter on a row, and escape to come back."
            case _:
                skip, detach, stop, help_ = (
                    key_of(self, action) for action in ("skip_lesson", "detach", "stop", "help")
                )
                return (
                    f"Press {skip} to close the tour. {help_} explains a view, {detach} leaves the run training, "
                    f"{stop} ends it."
                )

    def key_of_view(self, view: str) -> str:
        tab = TABS_BY_VIEW[view]
        return f"{key_of(self, tab.action)} for {tab.title}"
