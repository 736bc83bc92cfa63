"""What makes a preset fit: which batch sizes are compiled, and the fitter on real engine processes.

None compiles a program: answers of the compiler are in its cache, and the compiler fails for others.
"""

import asyncio
import json
from functools import partial
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from shardtui.engine.planning import cache as plan_cache
from shardtui.engine.planning.fitting import MOST_BATCHES, Fit, Trial, next_batch
from shardtui.engine.planning.ranking import Cost
from shardtui.engine.spec.config import RunConfig, TrainingConfig
from shardtui.engine.spec.mesh_names import mesh_preset
from shardtui.engine.spec.model_config import KEPT
from shardtui.engine.spec.preset_reader import load_preset
from shardtui.engine.spec.topology import load_topology
from shardtui.engine.wire.descriptions import PeakMemory
from shardtui.tui.client.fitter import OTHERS, Fitter
from shardtui.tui.state.fit_words import change, conclusion, ordered

from ..compilers import FAILS, HANGS, Compilers
from ..conftest import tiny_config, tiny_model

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


def keep(config: RunConfig, preset: str, part: float, rate: float = 1.0) -> None:
    """Puts an answer of the compiler into its cache: `part` of the memory of a device."""
    cost = Cost(
        basis="compiler",
        argument_bytes=1,
        peak_bytes=int(part * CAPACITY),
        capacity_bytes=CAPACITY,
        at_peak=PeakMemory(bytes=9, at=part, op_name="", source="") if part <= 1 else None,
        step_seconds=0.5 if part <= 1 else None,
        tokens_per_second=rate if part <= 1 else None,
    )
    plan_cache.store(config, load_preset(preset), load_topology(SLICE), cost)


def keep_all() -> None:
    """`fsdp` with 64 sequences is twice too large, and fits with 24."""
    for size in range(8, 72, 8):
        keep(config_of(batch_size=size), "fsdp", 0.25 + size / 64 * 1.75)
    keep(config_of(accumulate_steps=2), "fsdp", 1.125)
    for policy, kept in KEPT.items():
        keep(tiny_config(model=tiny_model(remat=policy), training=config_of().training), "fsdp", 0.6 + len(kept) / 5)


def fitted(config: RunConfig, preset: str = "fsdp") -> Fit:
    async def follow() -> Fit:
        fitter = Fitter(config, SLICE, preset)
        async for _ in fitter.fits():
            pass
        return fitter.fit

    return asyncio.run(follow())


def test_the_largest_batch_and_each_change_that_may_help_are_compiled(home: Path, compilers: Compilers) -> None:
    compilers.install(FAILS)
    keep_all()
    fit = fitted(config_of())
    assert fit.batches == {size: int((0.25 + size / 64 * 1.75) * CAPACITY) for size in (64, 32, 24)}
    assert (fit.largest_batch, fit.least_too_large) == (24, 32)
    assert fit.at_peak and fit.at_peak.at == 0.25 + 24 / 64 * 1.75, "what fills the memory with the largest batch"
    changes = {change(trial, fit.trials[0]): trial for trial in fit.changes}
    assert changes["accumulate_steps=2"].fits is False
    tried = [trial.remat for trial in fit.changes if trial.remat]
    assert tried[:4] == ["full", "save_qkv_proj", "save_out_proj", "save_dot_except_mlp"]
    assert [changes[f"remat={name}"].fits for name in tried[:3]] == [True] * 3
    assert [trial.fits for trial in fit.changes if trial.remat == "save_dot_except_mlp"] == [True]
    assert "minimal" not in tried, "it keeps all that a policy keeps which is too large"
    others = [trial for trial in fit.changes if trial.preset != "fsdp"]
    assert len(others) == OTHERS
    assert all(trial.problem.endswith("no such luck") for trial in others), "they are not in the cache"
    assert ordered(fit)[:3] == [fit.trials[0], fit.trials[1], fit.trials[2]]
    assert conclusion(fit).startswith("fsdp fits with batch_size=24, not with 32; with 64, remat=")


@pytest.mark.slow
def test_if_no_preset_fits_meshes_are_compiled(
    home: Path, compilers: Compilers, monkeypatch: pytest.MonkeyPatch
) -> None:
    compilers.install(FAILS)
    keep_all()
    monkeypatch.setattr("shardtui.tui.client.fitter.usual_presets", lambda config: (["data3"], []))
    fit = fitted(config_of())
    others = [trial for trial in fit.changes if trial.preset != "fsdp"]
    assert len(others) == OTHERS
    assert [change(each, fit.trials[0]) for each in others] == [f"preset={each.preset}" for each in others]
    assert any(mesh_preset(each.preset) for each in others)


def test_a_preset_that_fits_needs_no_change(home: Path, compilers: Compilers) -> None:
    compilers.install(FAILS)
    keep(config_of(batch_size=8), "fsdp", 0.5)
    fit = fitted(config_of(batch_size=8))
    assert [trial.fits for trial in fit.trials] == [True]
    assert conclusion(fit) == ""


def test_what_cannot_be_compiled_as_asked_is_not_changed(home: Path, compilers: Compilers) -> None:
    compilers.install(FAILS)
    fit = fitted(config_of())
    assert [trial.problem.endswith("no such luck") for trial in fit.trials] == [True]


def test_a_cancelled_fitter_leaves_no_process(home: Path, compilers: Compilers) -> None:
    compilers.install(HANGS)
    keep(config_of(), "fsdp", 2.0)
    fitter = Fitter(config_of(), SLICE, "fsdp")

    async def follow() -> None:
        async for _ in fitter.fits():
            pass

    async def end_early() -> None:
        task = asyncio.create_task(follow())
        await asyncio.to_thread(compilers.wait_for, 1)
        assert fitter.trying and fitter.trying.trial.batch_size == 32
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(end_early())
    assert compilers.all_gone(0)
    assert fitter.trying is None
    assert [trial.fits for trial in fitter.fit.trials] == [False]


def trial(**changes: object) -> Trial:
    values = {"preset": "fsdp", "batch_size": 64, "accumulate_steps": 1, "remat": False, "fits": False}
    return Trial(**{**values, "peak_bytes": 2 * CAPACITY, **changes})  # pyright: ignore[reportArgumentType]


def test_the_conclusion_names_the_fastest_change_that_keeps_the_batch() -> None:
    fits = {"fits": True, "peak_bytes": CAPACITY // 2}
    slow, fast = trial(remat="full", tokens_per_second=1e6, **fits), trial(preset="tp", tokens_per_second=2e6, **fits)
    smaller = trial(batch_size=8, **fits)
    fit = Fit(capacity_bytes=CAPACITY, trials=[trial(), smaller, slow, fast])
    assert conclusion(fit) == (
        "fsdp fits with batch_size=8, not with 64; with 64, preset=tp fits, 2 M tokens/s at most"
    )
    assert ordered(fit) == [trial(), smaller, fast, slow]
    none = Fit(
        capacity_bytes=CAPACITY, trials=[trial(), trial(batch_size=8), trial(remat="full", peak_bytes=20 * 10**9)]
    )
    assert conclusion(none) == (
        "fsdp: no batch size that was compiled fits, the smallest of them 8; "
        "with 64, no other change that was compiled makes it fit: remat=full comes closest, 20 GB"
    )


@pytest.mark.slow
def test_the_command_prints_the_table_and_the_json(
    home: Path, compilers: Compilers, capsys: pytest.CaptureFixture[str]
) -> None:
    from shardtui.tui.cli.plan import Asked, plan

    compilers.install(FAILS)
    keep_all()
    asked = partial(
        Asked, compiles=True, search=None, place=None, train=(), accounts=False, memory=False, fits=True, prices={}
    )
    assert plan(config_of(), [SLICE], ["fsdp"], asked(as_json=True)) == 0
    out, err = capsys.readouterr()
    (row,) = json.loads(out)["rows"]
    assert (row["verdict"], row["largest_batch"]) == ("too large", 24)
    assert row["fit"]["trials"][1] == msgspec.to_builtins(trial(batch_size=32, peak_bytes=int(1.125 * CAPACITY)))
    assert "compiling fsdp, batch_size=32, change 1" in err
    assert plan(config_of(), [SLICE], ["fsdp"], asked(as_json=False)) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "fsdp with batch_size=24: largest buffers at the peak" in text
    assert "fsdp does not fit: what was compiled instead, one change each" in text
    assert "→ fsdp fits with batch_size=24, not with 32; with 64, remat=" in text
