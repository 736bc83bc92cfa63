"""The loss chart as text, drawn without an app."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from shardtui.engine.base import formatting
from shardtui.tui.state.losses import BLOCK, Evaluations
from shardtui.tui.widgets.loss_plot import Curve, Plot, draw_plot, right_edge

from ..recorded import losses_of


def drawn(losses: list[float], width: int = 60, height: int = 12, **options: object) -> list[str]:
    return [line.plain for line in draw_plot(Plot(losses_of(losses), **options), width, height)]  # type: ignore[arg-type]


def braille(lines: list[str]) -> list[tuple[int, int]]:
    return [(x, y) for y, line in enumerate(lines) for x, c in enumerate(line) if "\u2800" < c <= "\u28ff"]


@given(st.lists(st.floats(-1e6, 1e6, width=32) | st.just(math.nan), max_size=20), st.data())
def test_the_mean_of_any_range_ignores_losses_that_are_not_finite(values: list[float], data: st.DataObject) -> None:
    values = (values or [1.0]) * BLOCK
    losses = losses_of(values[:-7])
    losses.extend(values[-7:])
    kept = data.draw(st.integers(0, len(values)))
    losses.rewind_to(kept)
    losses.extend(values[kept:])
    begin, end = sorted(data.draw(st.tuples(*[st.integers(0, len(values))] * 2)))
    finite = [value for value in values[begin:end] if math.isfinite(value)]
    mean = losses.mean(begin, end)
    assert mean is None if not finite else mean == pytest.approx(sum(finite) / len(finite), rel=1e-9, abs=1e-6)


@given(st.integers(1, 10**9))
def test_the_right_edge_is_close_and_rarely_moves(steps: int) -> None:
    edge = right_edge(steps)
    assert steps <= edge <= max(20, steps * 1.34)
    assert right_edge(edge) == edge


def test_a_falling_loss_falls_on_the_chart_without_gaps() -> None:
    lines = drawn([5 - n / 20 for n in range(80)])
    dots = braille(lines)
    assert min(dots)[1] < max(dots)[1]
    assert len({x for x, _ in dots}) == max(x for x, _ in dots) - 7 + 1, "a gap in the curve"
    assert lines[-1].split() == ["0", "20", "40", "60", "80"]
    assert float(lines[0].split()[0]) >= 5


def test_a_switch_is_marked_at_its_step() -> None:
    lines = drawn([2.0] * 100, width=107, marks=[(50, "fsdp"), (75, "tp")])
    assert lines[0].index("┊fsdp") == 7 + 50
    assert lines[0].index("┊tp") == 7 + 75
    assert all(line[57] in "┊⠤⠒⣀⠉" for line in lines[:-1])


@pytest.mark.parametrize("is_log", [False, True])
@given(
    losses=st.lists(st.floats(1e-6, 1e6) | st.just(math.nan), max_size=300),
    width=st.integers(0, 200),
    height=st.integers(0, 60),
)
def test_any_losses_are_drawn_within_any_size(losses: list[float], width: int, height: int, is_log: bool) -> None:
    lines = drawn(losses, width, height, is_log=is_log)
    assert len(lines) <= height
    assert all(len(line) <= width for line in lines if not line.startswith("no "))
    finite = any(math.isfinite(loss) for loss in losses)
    if finite and width >= 20 and height >= 5:
        assert braille(lines)


def test_the_name_of_a_mark_at_the_right_edge_is_on_its_left() -> None:
    lines = drawn([2.0] * 100, width=107, marks=[(50, "fsdp"), (98, "fsdp-tp2")])
    assert lines[0].index("fsdp-tp2┊") == 7 + 98 - len("fsdp-tp2")
    assert "┊fsdp" in lines[0]


def test_losses_that_are_not_finite_leave_a_gap() -> None:
    lines = drawn([2.0] * 10 + [math.nan] * 80 + [1.0] * 10, width=107)
    xs = {x for x, _ in braille(lines)}
    assert {7, 16, 98, 106} <= xs


def test_bytes_seconds_and_counts_have_three_digits_and_a_unit() -> None:
    assert [formatting.size(n) for n in (0, 999, 1000, 999_999, 9_873_408)] == [
        "0 B",
        "999 B",
        "1 kB",
        "1 MB",
        "9.87 MB",
    ]
    assert [formatting.seconds(s) for s in (4e-5, 0.0031, 0.031, 0.9999, 4.24, 200, 7300)] == [
        "40 µs",
        "3.1 ms",
        "31 ms",
        "1.0 s",
        "4.2 s",
        "3 min 20 s",
        "2 h 1 min",
    ]
    assert [formatting.count(n) for n in (842_496, 124_439_808, 1_557_611_200)] == ["842 k", "124 M", "1.56 B"]


@given(st.lists(st.tuples(st.integers(1, 60), st.floats(0.5, 9) | st.none())), st.integers(0, 60), st.integers(0, 60))
def test_evaluations_are_found_by_their_steps(added: list[tuple[int, float | None]], begin: int, end: int) -> None:
    evaluations, kept = Evaluations(), dict[int, float | None]()
    for step, loss in added:
        evaluations.add(step, loss)
        kept = {before: value for before, value in kept.items() if before < step} | {step: loss}
    finite = [loss for step, loss in kept.items() if begin < step <= end and loss is not None]
    assert evaluations.mean(begin, end) == (pytest.approx(sum(finite) / len(finite)) if finite else None)
    assert len(evaluations) == max(kept, default=0)
    before = max((step for step in kept if step <= end), default=None)
    assert (evaluations.latest(end) or [None])[0] == before


def test_held_out_losses_are_a_second_curve_with_a_letter_and_a_legend() -> None:
    evaluations = Evaluations()
    for step in (20, 40, 60, 80):
        evaluations.add(step, 6 - step / 80)
    lines = drawn([5 - n / 20 for n in range(80)], others=[Curve("eval", evaluations, "e", "$accent")])
    assert lines[0] == "e eval 5"
    ends = [(x, y) for y, line in enumerate(lines[1:]) for x, cell in enumerate(line) if cell == "e"]
    assert [x for x, _ in ends] == [max(x for x, _ in braille(lines))]
    own = [y for x, y in braille(lines) if x == ends[0][0]]
    assert all(ends[0][1] + 1 < y for y in own), "the held-out loss is above that of the steps"
