"""The numbers inside arrays: what is kept of them, and `shardtui numbers`."""

import json
import math
from pathlib import Path

import pytest
from shardtui.engine.base import formatting
from shardtui.engine.wire import events as wire
from shardtui.tui.cli.main import main
from shardtui.tui.state.experts import layer_loads, part_loads, part_words
from shardtui.tui.state.number_tables import course_bars, layers_words, shard_words
from shardtui.tui.state.numbers import KEPT, Numbers, outlier, rows_of, whole

from ..recorded import EXPERTS, SHARD, array_numbers, numbers_measured, recorded_run, restored
from ..schemas import checked
from .test_run_state import after

UP = array_numbers("up", 0.03, 0.04, 3.0, shards=[SHARD], nonfinite=[0, 12, 0])
UPDATE = array_numbers("update.up", 0.003, 0.0, 0.03, kind="update")
BIAS = array_numbers("bias", 0.0)
STEP = numbers_measured(4, UP, BIAS, UPDATE, array_numbers("update.bias", 0.1, kind="update"), experts=EXPERTS)


def kept(*events: wire.Event) -> Numbers:
    return after(*events).numbers


def test_courses_are_kept_and_a_restored_checkpoint_drops_later_measurements() -> None:
    each = [numbers_measured(step, array_numbers("up", float(step))) for step in range(1, 41)]
    numbers = kept(*each)
    assert numbers.newest is each[-1] and next(iter(numbers.courses["up"])) == (41 - KEPT, 41 - KEPT)
    numbers = kept(*each[:3], restored(2))
    assert numbers.newest is None and [*numbers.courses["up"]] == [(1, 1.0), (2, 2.0)]
    assert rows_of(numbers) == []
    numbers = kept(*each[:3], restored(2), again := numbers_measured(3, array_numbers("up", 7.0)))
    assert numbers.newest is again and [*numbers.courses["up"]][-1] == (3, 7.0)
    assert kept(*each[:3], wire.TrainingStarted(preset="dp", step=3)).newest is each[2]
    assert kept(each[0], numbers_measured(2, problem="no memory")).newest is each[0]
    assert [*kept(each[0], numbers_measured(1, array_numbers("up", 9.0))).courses["up"]] == [(1, 9.0)]


def test_updates_are_figures_of_their_parameter() -> None:
    up, bias = rows_of(kept(STEP))
    assert up.update_ratios == [pytest.approx(0.1), 0.0, pytest.approx(0.01)]
    assert up.update_ratio == pytest.approx(whole(UPDATE.rms) / whole(UP.rms))
    assert (bias.update_ratios, bias.update_ratio) == ([None], None), "of a parameter that is 0"


def test_a_layer_that_stands_out_is_named() -> None:
    assert layers_words(UP) == "0.03…3 (layer 1)", "with elements that are not finite"
    assert layers_words(array_numbers("up", 0.03, 0.04, 3.0)) == "0.03…3 (layer 2)"
    assert layers_words(array_numbers("up", 0.03, 0.04)) == "0.03…0.04"
    assert layers_words(BIAS) == ""
    assert outlier([1.0, 0.0, 1.0]) == 1 and outlier([0.0, 0.0, 1.0]) is None and outlier([]) is None
    assert shard_words(SHARD) == "device 3 [1:2, 0:64, 128:256]: 12 NaN or inf, rms 3.2e4, 40 × the others"


def test_small_changes_look_small() -> None:
    assert course_bars([1.0]) == "" and set(course_bars([1.0, 1.01, 1.0])) <= set("▄▅")
    assert course_bars([1e-3, 1.0]) == "▁█" and course_bars([0.0, 1.0, 2.0]) == "▁█"
    assert [*map(formatting.number, (0.0213, 1.234e-5, -32_000.0, 0.0, 12.0))] == [
        "0.0213",
        "1.23e-5",
        "-3.2e4",
        "0",
        "12",
    ]


def test_the_load_of_experts() -> None:
    even, uneven = layer_loads(EXPERTS)
    assert (even.variation, even.dead, even.used) == (0.0, 0, pytest.approx(1.0))
    assert (uneven.dead, uneven.busiest, uneven.dropped) == (1, 1, 0.125)
    assert uneven.variation == pytest.approx(math.sqrt((1 + 2.25 + 0 + 0.25) / 4))
    shares = [2.5 / 4, 1 / 4, 0.5 / 4]
    assert uneven.used == pytest.approx(math.exp(-sum(share * math.log(share) for share in shares)) / 4)
    assert part_loads(EXPERTS) == [pytest.approx(4.5 / 4), pytest.approx(3.5 / 4)]
    assert part_words(EXPERTS, ["expert"]) == "`expert` part 1 of 2 does 1.12 × the mean"


def printed(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> str:
    assert main(["numbers", *arguments]) == code
    out, err = capsys.readouterr()
    return err if code else out


def words(out: str) -> list[str]:
    """Returns the lines with one space between words."""
    return [" ".join(line.split()) for line in out.splitlines()]


def test_numbers_of_a_run_as_tables_and_as_json(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = numbers_measured(2, array_numbers("up", 0.3, 0.4, 0.5), array_numbers("bias", 0.0))
    name = recorded_run("tiny-1", first, STEP, wire.EngineStopped(step=4, reason="stopped")).name
    out = printed(capsys, name)
    assert f"{name}, step 4, under dp: 2 arrays, measured in 250 ms" in out
    assert "up 1.73 12 ▁█ 0.01 12 0.03…3 (layer 1) 0 parameter" in words(out)
    assert "update.up" not in out
    assert "1 0.935 62 % 1 2.5 (expert 1) 12 % 40" in words(out)
    assert "device part 1 of 2 does 1.12 × the mean" in out
    out = printed(capsys, name, "--array", "up")
    assert "1 0.04 0.16 0 12 0" in words(out)
    assert "[1:2, 0:64, 128:256]" in out and "3.2e4" in out
    assert "step 2, under dp" in printed(capsys, name, "--step", "2")
    report = checked("numbers", printed(capsys, name, "--json"))
    assert [each["step"] for each in report["measurements"]] == [2, 4]
    report = json.loads(printed(capsys, name, "--json", "--step", "4", "--array", "up"))
    assert [[array["name"] for array in each["arrays"]] for each in report["measurements"]] == [["up", "update.up"]]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--array", "upp"], "--array upp: no such array among the 4 of step 4: did you mean up?"),
        (["--array", "zz"], "--array zz: no such array among the 4 of step 4: see `shardtui numbers tiny-1`"),
        (["--step", "3"], "--step 3: run tiny-1 has numbers of steps 4: choose one of them"),
    ],
)
def test_mistakes_get_a_message(
    home: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], says: str
) -> None:
    recorded_run("tiny-1", STEP)
    assert says in printed(capsys, "tiny-1", *arguments, code=2)


def test_a_run_without_numbers_says_how_to_get_some(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recorded_run("tiny-1")
    assert "`shardtui train --resume tiny-1 --numbers-every 100` trains on" in printed(capsys, "tiny-1", code=2)
    recorded_run("tiny-2", numbers_measured(5, problem="no memory"))
    assert "run tiny-2 has no numbers: no memory" in printed(capsys, "tiny-2", code=2)
    assert "run tiny-7: no such run" in printed(capsys, "tiny-7", code=2)
