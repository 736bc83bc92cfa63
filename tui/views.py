"""The views beside Watch, each imported when it is first wanted: the first frame waits for none of them."""

from textual.screen import Screen


def arrays() -> Screen[None]:
    from .screens.arrays import ArraysScreen

    return ArraysScreen()


def mesh() -> Screen[None]:
    from .screens.mesh import MeshScreen

    return MeshScreen()


def traffic() -> Screen[None]:
    from .screens.traffic import TrafficScreen

    return TrafficScreen()


def lint() -> Screen[None]:
    from .screens.lint import LintScreen

    return LintScreen()


def compare() -> Screen[None]:
    from .screens.compare import CompareScreen

    return CompareScreen()


def plan() -> Screen[None]:
    from .screens.plan import PlanScreen

    return PlanScreen()


def rules() -> Screen[None]:
    from .screens.rules import RulesScreen

    return RulesScreen()


def log() -> Screen[None]:
    from .screens.log import LogScreen

    return LogScreen()
