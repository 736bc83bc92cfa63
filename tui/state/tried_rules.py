"""Rules to try, as they are typed: `mlp=model`, `batch=data+fsdp`, `mlp=` for an unsharded axis."""

from ...engine.base.user_error import UserError

EXAMPLES = "such as mlp=model, batch=data+fsdp, or mlp= for none"


def read_rule(text: str) -> tuple[str, list[str]]:
    """Returns a logical axis and its mesh axes. Raises UserError."""
    logical, equals, axes = text.partition("=")
    if not equals or not logical:
        raise UserError(f"{text!r} is not AXIS=MESHAXES, {EXAMPLES}")
    return logical, [axis for axis in axes.split("+") if axis]


def read_rules(text: str) -> dict[str, list[str]]:
    """Returns the rules in a line, separated by spaces. Raises UserError if one is wrong, or if there is none."""
    if not text.split():
        raise UserError(f"type a rule, {EXAMPLES}")
    return dict(map(read_rule, text.split()))


def in_words(rules: dict[str, list[str]]) -> str:
    """Returns the rules as they are typed: `mlp= batch=data+fsdp`."""
    return " ".join(f"{logical}={'+'.join(axes)}" for logical, axes in rules.items())
