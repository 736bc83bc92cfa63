"""`plan --fit`: searches with a fixed mesh. Which settings are compiled, by the planner on real engine processes.

None compiles a program: answers of the compiler are in its cache, and the compiler fails for others.
"""

import asyncio
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from shardtui.engine.planning import compilers as plan_cache
from shardtui.engine.planning.finalists import MOST_BATCHES, MOST_PROGRAMS, batch_limits, next_batch, next_row
from shardtui.engine.planning.ranking import Row, StepCost
from shardtui.engine.spec.config import RunConfig, TrainingConfig
from shardtui.engine.spec.model_config import KEPT
from shardtui.engine.spec.preset_reader import load_preset
from shardtui.engine.spec.search import SearchRequest
from shardtui.engine.spec.topology import load_topology
from shardtui.engine.wire.descriptions import PeakMemory
from shardtui.tui.cli.plan import Asked, plan
from shardtui.tui.client.planner import Planner
from shardtui.tui.state.recommendation import recommendation

from ..compilers import FAILS, Compilers
from ..conftest import tiny_config, tiny_model
from ..schemas import checked

SLICE = "v5e:2x4"
CAPACITY = load_topology(SLICE).chip.memory


def searched(fixed: int, each: float, asked: int, least: int) -> dict[int, int]:
    """Compiles batch sizes of a step that holds `fixed` + `each` × size bytes until there is no next one."""
    found = {asked: int(fixed + each * asked)}
    while size := next_batch(found, CAPACITY, least):
        assert size not in found and size % least == 0
        found[size] = int(fixed + each * size)
    return found


@given(st.integers(1, 64), st.integers(1, 4096), st.floats(0, 0.9), st.floats(1.01, 40))
def test_a_batch_that_memory_grows_with_linearly_is_found_to_the_last_multiple(
    least: int, groups: int, fixed: float, over: float
) -> None:
    asked = least * groups
    each = (over - fixed) * CAPACITY / asked
    found = searched(int(fixed * CAPACITY), each, asked, least)
    fitting = [size for size, peak in found.items() if peak <= CAPACITY]
    assert len(found) <= MOST_BATCHES + 1
    largest = int((CAPACITY - fixed * CAPACITY) / each) // least * least
    assert abs(max(fitting, default=0) - largest) <= least * (groups > 1), "up to rounding"


def test_if_no_batch_fits_the_smallest_is_compiled() -> None:
    found = searched(CAPACITY + 1, 1.0, 64, 8)
    assert min(found) == 8


def config_of(**training: int) -> RunConfig:
    return tiny_config(training=TrainingConfig(**{"batch_size": 64, "seq_len": 16, **training}))


def cost_of(part: float, rate: float = 1.0) -> StepCost:
    """A cost by the compiler: `part` of the memory of a device."""
    return StepCost(
        basis="compiler",
        argument_bytes=1,
        peak_bytes=int(part * CAPACITY),
        capacity_bytes=CAPACITY,
        at_peak=PeakMemory(bytes=9, at=part, op_name="", source="") if part <= 1 else None,
        step_seconds=0.5 if part <= 1 else None,
        tokens_per_second=rate if part <= 1 else None,
    )


def keep(config: RunConfig, preset: str, part: float) -> None:
    plan_cache.store_cost(config, load_preset(preset), load_topology(SLICE), cost_of(part))


def keep_all() -> None:
    """`fsdp` with 64 sequences is twice too large, and fits with 24."""
    for size in range(8, 72, 8):
        keep(config_of(batch_size=size), "fsdp", 0.25 + size / 64 * 1.75)
    keep(config_of(accumulate_steps=2), "fsdp", 1.125)
    for policy, kept in KEPT.items():
        keep(tiny_config(model=tiny_model(remat=policy), training=config_of().training), "fsdp", 0.6 + len(kept) / 5)


def fitted(config: RunConfig) -> list[Row]:
    planner = Planner(config, SLICE, ["fsdp"], compiles=True, search=SearchRequest(is_mesh_fixed=True))

    async def follow() -> None:
        async for _ in planner.boards():
            pass

    asyncio.run(follow())
    assert planner.board
    return planner.board.rows


def test_the_largest_batch_and_each_change_that_may_help_are_compiled(home: Path, compilers: Compilers) -> None:
    compilers.install(FAILS)
    keep_all()
    rows = fitted(config_of())
    assert {row.preset for row in rows} == {"fsdp"}
    assert rows[0].settings == {} and len(rows) <= MOST_PROGRAMS
    sizes = [row.settings["batch_size"] for row in rows if "batch_size" in row.settings]
    assert sizes == [32, 24]
    assert batch_limits(rows) == {"fsdp": (24, 32)}
    assert {row.settings.get("batch_size", 64): row.tokens for row in rows} == {64: 1024, 32: 512, 24: 384}
    fits = {str(value): row.verdict for row in rows for value in row.settings.values()}
    assert fits["2"] == "too large", "more micro-batches"
    assert [policy for policy in KEPT if fits.get(policy) == "fits"] == list(KEPT)[:4]
    assert "minimal" not in fits, "it keeps all that a policy keeps which is too large"
    said = recommendation(rows, SLICE, "fits-largest-batch")
    assert said.startswith("fsdp remat=")
    assert "; fsdp fits with batch_size=24, not with 32; with the same batch as asked, remat=" in said


def row_of(part: float | None = None, tokens: int = 1024, **settings: bool | int | str) -> Row:
    compiled = None if part is None else cost_of(part)
    return Row(preset="fsdp", mesh={"fsdp": 8}, settings=settings, tokens=tokens, laid_out=True, compiled=compiled)


def test_one_batch_is_compiled_at_a_time_and_other_changes_beside_it() -> None:
    preset = load_preset("fsdp")
    first, half = row_of(2.0), row_of(tokens=512, batch_size=32)
    assert next_row([first], config_of(), preset, 8) == half
    beside = next_row([first, half], config_of(), preset, 8)
    assert beside and beside.settings == {"accumulate_steps": 2}
    known = [first, row_of(0.9, 512, batch_size=32)]
    after = next_row(known, config_of(), preset, 8)
    assert after and 32 < int(after.settings["batch_size"]) < 64
    assert next_row([row_of()], config_of(), preset, 8) is None, "as asked it is not compiled yet, or cannot be"
    assert next_row([row_of(0.5)], config_of(), preset, 8) is None, "as asked it fits"


def test_if_no_batch_that_was_compiled_fits_the_smallest_is_named() -> None:
    rows = [row_of(2.0), row_of(1.5, 128, batch_size=8)]
    assert batch_limits(rows) == {"fsdp": (None, 8)}
    said = recommendation(rows, SLICE, "tokens-per-second")
    assert said.startswith(f"no candidate fits on {SLICE}: fsdp batch_size=8 comes closest")
    assert said.endswith("fsdp: no batch size that was compiled fits, the smallest of them 8")


@pytest.mark.slow
def test_the_command_prints_the_table_and_the_json(
    home: Path, compilers: Compilers, capsys: pytest.CaptureFixture[str]
) -> None:
    compilers.install(FAILS)
    keep_all()
    search = SearchRequest(is_mesh_fixed=True, goal="fits-largest-batch")
    asked = partial(
        Asked, compiles=True, search=search, place=None, train=["train"], breakdowns=False, memory=True, prices={}
    )
    assert plan(config_of(), [SLICE], ["fsdp"], asked(as_json=True)) == 0
    out, err = capsys.readouterr()
    report = checked("plan", out)
    rows, (search,) = report["rows"], report["searches"]
    assert {row["preset"] for row in rows} == {"fsdp"}
    assert [row["largest_batch"] for row in rows if not row["settings"]] == [24]
    best = max((row for row in rows if row["verdict"] == "fits"), key=lambda row: row["tokens"])
    assert search["chosen"]["settings"].keys() == best["settings"].keys() == {"remat"}
    assert (search["ended"], search["compiled"], search["finalists"]) == ("done", len(rows), len(rows))
    assert "compiling fsdp batch_size=32, 2 of 16" in err
    assert plan(config_of(), [SLICE], ["fsdp"], asked(as_json=False)) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "largest buffers at the peak" in text
    assert "fsdp fits with batch_size=24, not with 32; with the same batch as asked, remat=" in text
    assert "train with it: train --preset" in text
