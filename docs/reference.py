"""Writes the commands, presets and findings of docs/reference.md, and the views and keys of docs/keys.md, from the
code: `python docs/reference.py`.

What is above the mark of a page is written by hand. With `--check` nothing is written: it names the pages that are
not as it would write them, and exits with 1 if there are any.
"""

import argparse
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from shardtui.engine.hlo.finding import RULES
from shardtui.engine.spec.preset_files import PRESETS, is_pitfall, read_toml
from shardtui.tui.app_keys import KEYS
from shardtui.tui.cli.main import COMMANDS, _parser
from shardtui.tui.screens.arrays import ArraysScreen
from shardtui.tui.screens.checkpoints import CheckpointsScreen
from shardtui.tui.screens.compare import CompareScreen
from shardtui.tui.screens.experts import ExpertsScreen
from shardtui.tui.screens.lint import LintScreen
from shardtui.tui.screens.log import LogScreen
from shardtui.tui.screens.mesh import MeshScreen
from shardtui.tui.screens.origin import OriginScreen
from shardtui.tui.screens.plan import PlanScreen
from shardtui.tui.screens.program import ProgramScreen
from shardtui.tui.screens.rules import RulesScreen
from shardtui.tui.screens.time import PartsHistory, TimeScreen
from shardtui.tui.screens.traffic import TrafficScreen
from shardtui.tui.screens.watch import WatchScreen
from shardtui.tui.widgets.loss_chart import LossChart
from shardtui.tui.widgets.preset_list import PresetList
from shardtui.tui.widgets.rule_list import RuleList
from shardtui.tui.widgets.sharding_pane import ShardingPane
from shardtui.tui.widgets.tab_bar import TABS
from shardtui.tui.widgets.timeline import TimelineView
from textual.binding import Binding, BindingType
from textual.keys import format_key

DOCS = Path(__file__).parent
MARK = "<!-- What follows is written by `python docs/reference.py`. -->\n"

VIEWS: dict[str, tuple[type, ...]] = {
    "Watch": (WatchScreen, PresetList, LossChart),
    "Arrays": (ArraysScreen, ShardingPane),
    "Mesh": (MeshScreen,),
    "Traffic": (TrafficScreen,),
    "Lint": (LintScreen,),
    "Compare": (CompareScreen,),
    "Plan": (PlanScreen,),
    "Rules": (RulesScreen, RuleList),
    "Time": (TimeScreen, TimelineView, PartsHistory),
    "Log": (LogScreen,),
    "Experts": (ExpertsScreen,),
}
"""The parts of each view that have keys or a help text of their own."""


def reference() -> Iterator[str]:
    yield "## Commands\n"
    yield f"{' · '.join(f'[`{name}`](#shardtui-{name})' for name in COMMANDS)}\n"
    counts = Counter(row for parser in commands().values() for row in options(parser))
    shared = {row: None for row, count in counts.items() if count > 1 and row[0].startswith("`--")}
    yield "### Shared options\n"
    yield from table(("", ""), shared)
    for name, parser in commands().items():
        yield from command(name, parser, {*shared})
    yield "## Presets\n"
    presets = sorted((PRESETS / "parallelism").glob("*.toml"), key=lambda path: (is_pitfall(path.stem), path.stem))
    for path in presets:
        yield from preset(path)
    yield "## Models\n"
    models = sorted((PRESETS / "models").glob("*.toml"))
    yield from table(("model", ""), ((f"`{path.stem}`", read_toml(path)["summary"]) for path in models))
    yield "## Findings of Lint\n"
    yield from table(("code", "name", ""), ((f"`{code}`", name, what) for code, (name, what) in RULES.items()))


def commands() -> dict[str, argparse.ArgumentParser]:
    (choices,) = (action.choices for action in _parser(*COMMANDS)._actions if isinstance(action.choices, dict))
    return choices


def command(name: str, parser: argparse.ArgumentParser, shared: set[tuple[str, str]]) -> Iterator[str]:
    yield f"### shardtui {name}\n"
    yield f"{parser.description}\n"
    yield f"Example: `{(parser.epilog or '').removeprefix('example: ')}`\n"
    rows = options(parser)
    yield from table(("", ""), (row for row in rows if row not in shared))
    if names := [f"`{row[0].strip('`').split()[0]}`" for row in rows if row in shared]:
        yield f"With [shared options](#shared-options): {' '.join(names)}\n"


def options(parser: argparse.ArgumentParser) -> list[tuple[str, str]]:
    """The spelling of each, and its help."""
    shown = [action for action in parser._actions if action.help != argparse.SUPPRESS and action.dest != "help"]
    return [(f"`{_spelling(action)}`", ((action.help or "") % vars(action)).replace("|", "\\|")) for action in shown]


def _spelling(action: argparse.Action) -> str:
    value = action.metavar or (",".join(action.choices) if action.choices else "")
    return " ".join(filter(None, (", ".join(action.option_strings), str(value) if action.nargs != 0 else "")))


def preset(path: Path) -> Iterator[str]:
    """Name, mesh, rules and the two texts of a file."""
    toml: dict[str, Any] = read_toml(path)
    mesh = " × ".join(f"{axis} {'…' if size == -1 else size}" for axis, size in toml["mesh"].items())
    rules = [f"{logical} → {_axes(axes)}" for logical, axes in toml["rules"].items()]
    others = [_override(name, given) for name, given in toml.get("overrides", {}).items()]
    yield f"### {path.stem}\n"
    yield f"{toml['summary']}.\n"
    yield f"Mesh `{mesh}`. Rules: {', '.join(f'`{rule}`' for rule in rules)}.\n"
    if others:
        yield f"By array name: {', '.join(f'`{other}`' for other in others)}.\n"
    yield f"{toml['teaches']}\n"


def _override(name: str, given: Any) -> str:
    spec, least = (given["spec"], given.get("min_size", 0)) if isinstance(given, dict) else (given, 0)
    return f"{name} → {_axes(spec) or 'replicated'}{f', from {least:,} elements' if least else ''}"


def _axes(axes: str | list[str]) -> str:
    return axes if isinstance(axes, str) else ", ".join(axes)


def keys() -> Iterator[str]:
    yield "## Every view\n"
    views = {f"switch_mode('{name.lower()}')" for name in VIEWS} | {tab.action for tab in TABS}
    yield f"{' · '.join(f'`{tab.key}` [{tab.title}](#{tab.title.lower()})' for tab in TABS)}\n"
    yield from key_table(binding for binding in bindings(KEYS) if binding.action not in views)
    for name, parts in VIEWS.items():
        texts = [text for part in parts if (text := vars(part).get("HELP"))]
        if not any(text.startswith(f"## {name}\n") for text in texts):
            yield f"## {name}\n"
        for text in texts:
            heading, _, paragraphs = text.strip().partition("\n\n")
            yield f"{heading if heading == f'## {name}' else f'#{heading}'}\n\n{paragraphs}\n"
        yield from key_table(binding for part in parts for binding in bindings(vars(part).get("BINDINGS", ())))
    for screen in (OriginScreen, ProgramScreen):
        heading, _, paragraphs = screen.HELP.strip().partition("\n\n")
        yield f"{heading}\n\n{paragraphs}\n"
        yield from key_table(bindings(screen.BINDINGS))
    yield "## The list of checkpoints\n"
    yield from key_table(bindings(CheckpointsScreen.BINDINGS))


def bindings(given: Iterable[BindingType]) -> list[Binding]:
    return list(Binding.make_bindings(given))


def key_table(given: Iterable[Binding]) -> Iterator[str]:
    """Keys with the same text are one row. One that is shown with its opposite, as `←→`, has no row of its own."""
    known = list(given)
    shown_together = {*"".join(binding.key_display or "" for binding in known)}
    rows: dict[str, list[str]] = {}
    for binding in known:
        key = binding.key_display or format_key(binding.key)
        if key not in shown_together:
            rows.setdefault(binding.tooltip or binding.description, []).append(key)
    yield from table(("key", ""), ((" ".join(f"`{key}`" for key in names), text) for text, names in rows.items()))


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    lines = [f"| {' | '.join(row)} |" for row in rows]
    if lines:
        yield "\n".join((f"| {' | '.join(heads)} |", "|---" * len(heads) + "|", *lines, ""))


def written() -> Iterator[tuple[Path, str]]:
    """Each page, and what it is to hold."""
    for name, parts in (("reference", reference()), ("keys", keys())):
        path = DOCS / f"{name}.md"
        yield path, path.read_text(encoding="utf-8").partition(MARK)[0] + MARK + "\n" + "\n".join(parts)


def main() -> int:
    wrong = {path: text for path, text in written() if path.read_text(encoding="utf-8") != text}
    if "--check" in sys.argv:
        for path in wrong:
            print(f"{path.name} differs from the code: run `python docs/reference.py`", file=sys.stderr)
        return bool(wrong)
    for path, text in wrong.items():
        path.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
