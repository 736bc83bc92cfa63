"""Joins screenshots that Textual exports into one SVG that moves, with each element stored once."""

import re
from collections.abc import Iterator, Sequence

STYLE = re.compile(r"\.terminal-\d+-(r\d+) \{ (.*?) \}")
BACKGROUNDS = re.compile(r'<rect fill="[^>]*?/>')
TEXT = re.compile(r"<text .*?</text>", re.DOTALL)
NOISE = re.compile(r' clip-path="[^"]*"| shape-rendering="[^"]*"')
CLASS = re.compile(r'class="terminal-\d+-(r\d+)"')

Span = tuple[int, int]
"""The first frame of an element and the one after its last."""


def movie(frames: Sequence[str], seconds: float) -> str:
    """Returns an SVG that shows each frame for `seconds`, again and again. All frames have one size."""
    styles: dict[str, str] = {}
    shown: dict[str, list[int]] = {}
    for number, frame in enumerate(frames):
        for element in _elements(frame, styles):
            shown.setdefault(element, []).append(number)
    ordered = sorted(shown, key=lambda element: element.startswith("<text"))  # backgrounds first
    spans = [(element, span) for element in ordered for span in _spans(shown[element])]
    rules = [f".{name}{{{css}}}" for css, name in styles.items()]
    rules += [_rule(span, len(frames), seconds) for span in dict.fromkeys(span for _, span in spans)]
    body = "\n".join(_placed(element, span, len(frames)) for element, span in spans)
    opening = frames[0][: frames[0].index("<defs>")]
    head = re.sub(r"\.terminal-\d+-r\d+ \{.*?\}\s*", "", opening).replace("</style>", "\n".join(rules) + "</style>")
    matrix = re.search(r"terminal-\d+-matrix", head)
    assert matrix
    begin = _begin(frames[0])
    chrome = frames[0][frames[0].index("</defs>") + len("</defs>") : begin]
    origin = re.match(r"<g transform=\"[^\"]*\"", frames[0][begin:])
    assert origin
    return f'{head}{chrome}{origin[0]}><g class="{matrix[0]}">{body}</g></g></svg>\n'


def _elements(frame: str, styles: dict[str, str]) -> Iterator[str]:
    """Yields the backgrounds and texts of a frame, with classes that all frames share; adds these to `styles`."""
    css = dict(STYLE.findall(frame))
    begin = _begin(frame)
    for element in (*BACKGROUNDS.findall(frame, begin), *TEXT.findall(frame, begin)):
        known = CLASS.search(element)
        if known:
            name = styles.setdefault(css[known[1]], f"s{len(styles)}")
            element = CLASS.sub(f'class="{name}"', element)
        yield NOISE.sub("", element)


def _begin(frame: str) -> int:
    """Returns where the screen begins, after the window around it."""
    return frame.rindex("<g transform")


def _spans(numbers: Sequence[int]) -> list[Span]:
    starts = [number for number in numbers if number - 1 not in numbers]
    ends = [number + 1 for number in numbers if number + 1 not in numbers]
    return list(zip(starts, ends, strict=True))


def _placed(element: str, span: Span, count: int) -> str:
    return element if span == (0, count) else f'<g class="{_name(span)}">{element}</g>'


def _name(span: Span) -> str:
    return f"f{span[0]}-{span[1]}"


def _rule(span: Span, count: int, seconds: float) -> str:
    """Returns the style of an element: without animations, the last frame is seen."""
    if span == (0, count):
        return ""
    name, begin, end = _name(span), 100 * span[0] / count, 100 * span[1] / count
    still = "" if span[1] == count else "opacity:0;"
    points = [("0%", int(span[0] == 0)), (f"{begin:.2f}%", 1), *([(f"{end:.2f}%", 0)] if span[1] < count else [])]
    steps = "".join(f"{at}{{opacity:{visible}}}" for at, visible in points)
    return f".{name}{{{still}animation:{name} {count * seconds:g}s step-end infinite}}@keyframes {name}{{{steps}}}"
