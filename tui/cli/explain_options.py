"""The options of `explain` and `why`, and `--mesh`."""

import argparse
import math

from ...engine.base.invalid import Invalid
from ...engine.spec.preset import AXIS_NAME
from ..state.tried_rules import EXAMPLES, read_rule

MAX_DEVICES = 10**6
"""Largest product of the sizes in `--mesh`."""


def add_explain_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `explain`."""
    add = parser.add_argument
    add(
        "program",
        metavar="FILE.py:FUNCTION",
        help="a function without arguments that returns what jax.jit(f).lower(…) or .trace(…) gives, or a pair of "
        "jax.jit(f) and a tuple of its abstract arguments",
    )
    add(
        "name",
        nargs="?",
        metavar="NAME",
        help="print the whole chains of the values and collectives with this in their name or source",
    )
    add("--mesh", type=mesh, metavar="AXIS=SIZE,…", help="mesh of simulated devices to set, as by jax.set_mesh")
    add("--compile", action="store_true", help="compile the program as well: its collectives and memory")
    add("--text", action="store_true", help="print tables, as without a terminal, in place of opening the UI")
    add("--save", metavar="FILE", help="write the answer to FILE, as JSON, to compare with later")
    add("--diff", dest="saved", metavar="FILE", help="show what changed since --save FILE; exit 1 if anything did")


def add_why_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `why` besides those of a preset."""
    add = parser.add_argument
    add(
        "name",
        metavar="NAME",
        help="part of an array's name or of a source line, such as mlp.up or blocks.py:104",
    )
    add("--compile", action="store_true", help="compile the step as well: what the compiler chose")
    add(
        "--try",
        dest="tried",
        action="append",
        default=[],
        type=_rule,
        metavar="AXIS=MESHAXES",
        help=f"show what changes with another rule, {EXAMPLES}; repeatable",
    )


def _rule(text: str) -> tuple[str, list[str]]:
    try:
        return read_rule(text)
    except Invalid as error:
        raise argparse.ArgumentTypeError(error.problems[0]) from error


def mesh(text: str) -> dict[str, int]:
    """Reads the axes of a mesh, `data=4,model=2`. Raises ArgumentTypeError."""
    try:
        sizes = {axis.strip(): int(size) for axis, size in (part.split("=") for part in text.split(","))}
    except ValueError:
        sizes = {}
    named = all(AXIS_NAME.fullmatch(axis) for axis in sizes)
    if not sizes or not named or min(sizes.values()) < 1 or math.prod(sizes.values()) > MAX_DEVICES:
        raise argparse.ArgumentTypeError(f"{text!r} is not AXIS=SIZE,…, such as data=4,model=2")
    return sizes
