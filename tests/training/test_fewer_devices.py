"""A run that is started again on fewer devices: the mesh, the preset and the micro-batches that fit."""

from pathlib import Path
from typing import Any

import jax
import msgspec
import pytest
from shardtui.engine.distributed.cluster import Cluster
from shardtui.engine.distributed.outcomes import Unfit
from shardtui.engine.models.task import Task
from shardtui.engine.planning.estimate import estimate_row
from shardtui.engine.program.placement import place
from shardtui.engine.program.program import compile_program
from shardtui.engine.spec.attempt import Attempt
from shardtui.engine.spec.config import Restart, RunConfig, ScheduledSwitch, TrainingConfig
from shardtui.engine.spec.preset_reader import load_preset
from shardtui.engine.training.fewer_devices import Fitted, fit

from ..conftest import tiny_config


class Uneven(Cluster):
    def all_gather(self, value: Any, kind: Any) -> list[Any]:
        return [value, 1]


def fitted(
    config: RunConfig, devices: int, fallback: tuple[str, ...] = (), processes: int = 1, cluster: Cluster | None = None
) -> Fitted:
    restart = Restart(attempt=Attempt(number=2, supervisor=1, processes=processes, of=8), fallback=fallback)
    return fit(config, Task(config, "cpu"), jax.devices()[:devices], restart, None, cluster or Cluster())


@pytest.mark.parametrize(
    ("preset", "devices", "sizes"),
    [
        ("dp-tp4", 6, {"data": 3, "model": 2}),
        ("dp-tp4", 2, {"data": 1, "model": 2}),
        ("data2-model4", 4, {"data": 1, "model": 4}),
        ("data4-model2", 6, {"data": 3, "model": 2}),
        ("data2-model4", 8, {"data": 2, "model": 4}),
    ],
)
def test_a_mesh_shrinks_along_its_first_axes(preset: str, devices: int, sizes: dict[str, int]) -> None:
    shrunk = load_preset(preset).shrunk(devices)
    assert (shrunk.sizes(devices), shrunk.size_problem(devices)) == (sizes, None)


@pytest.mark.slow
def test_a_run_keeps_its_preset_or_finds_one_that_fits() -> None:
    plain = tiny_config(preset="dp-tp2")
    assert fitted(plain, 4) == Fitted(plain)
    config = tiny_config(preset="data2-model4", switches=(ScheduledSwitch(9, "data8"),))
    found = fitted(config, 4)
    assert (found.config, found.replaced) == (config, {})
    assert "data2-model4 on 4 devices: mesh" in found.warnings[0]
    found = fitted(too_large(), 2)
    steps = found.config.training.accumulate_steps
    assert (found.config.preset, found.config.training.batch_size) == ("dp", 64)
    assert steps > 1
    assert found.warnings == [f"each step in {steps} micro-batches, whose activations fit 2 devices"]
    # The state alone, which `dp` replicates, is larger than the memory.
    found = fitted(tiny_config(preset="dp", device_memory=int(0.6 * peak("dp", 4))), 4)
    assert found.replaced == {found.config.preset: "dp"}
    assert "the memory of its trace" in found.warnings[0]
    # Eight rows do not divide by seven, six or five devices.
    config = tiny_config(preset="dp")
    restart = Restart(attempt=Attempt(number=2, supervisor=1, left_out=(5,)))
    found = fit(config, Task(config, "cpu"), jax.devices()[:7], restart, None, Cluster())
    assert (found.config, found.devices, found.replaced) == (config, 4, {})
    assert found.warnings == ["without device 5, which was wrong", "dp uses 4 of 7 devices: it does not fit more"]


def test_a_fallback_is_preferred_to_others_and_a_switch_that_does_not_fit_is_left_out(tmp_path: Path) -> None:
    file = tmp_path / "whole.toml"
    file.write_text('[mesh]\nrest = -1\n[rules]\nmlp = ""\n')
    found = fitted(tiny_config(preset="dp"), 6, ("tp", str(file)))
    assert (found.config.preset, found.replaced) == (str(file), {"whole": "dp"})
    file.write_text("[mesh]\nrest = -1\n")
    switches = (ScheduledSwitch(9, "dp"),)
    found = fitted(tiny_config(preset=str(file), switches=switches), 6)
    assert (found.config.switches, found.replaced) == ((), {})
    assert found.warnings == ["--switch 9:dp: left out: it does not fit"]


def peak(preset: str, devices: int, config: RunConfig | None = None) -> int:
    estimate = estimate_row(Task(config or tiny_config(), "cpu"), load_preset(preset), devices, None).estimate
    assert estimate
    return estimate.peak_bytes


def too_large() -> RunConfig:
    """Returns the config of a run for eight devices: two hold four times the rows, which do not fit."""
    large = tiny_config(preset="dp", training=TrainingConfig(batch_size=64, seq_len=16))
    return msgspec.structs.replace(large, device_memory=int(0.9 * peak("dp", 2, large)))


def compiled_peak(config: RunConfig, devices: int) -> int:
    task = Task(config, "cpu")
    program = compile_program(place(task, load_preset(config.preset), jax.devices()[:devices]))
    assert program.description.memory
    return program.description.memory.peak


@pytest.mark.slow
def test_micro_batches_make_room_in_the_compiled_program() -> None:
    config = too_large()
    found = fitted(config, 2)
    assert compiled_peak(found.config, 2) < 0.9 * compiled_peak(config, 2)


def test_what_fits_depends_on_the_process_whose_devices_have_the_least_memory() -> None:
    """Else processes would choose different presets."""
    with pytest.raises(Unfit, match="no preset fits 8 devices"):
        fitted(tiny_config(preset="dp"), 8, cluster=Uneven())


@pytest.mark.parametrize(("memory", "fits", "words"), [(None, 2, "on 2 of 3 processes"), (1, None, "nor on fewer")])
def test_what_fits_on_fewer_processes_is_said(memory: int | None, fits: int | None, words: str) -> None:
    """Eight rows, and eight heads, cannot be split among six devices; among four they can."""
    with pytest.raises(Unfit, match=f"no preset fits 6 devices, {words}") as error:
        fitted(tiny_config(device_memory=memory), 6, processes=3)
    assert error.value.processes == fits


def test_a_preset_whose_state_is_too_large_is_said_not_to_fit_by_memory() -> None:
    with pytest.raises(Unfit, match="no preset fits 4 devices, nor on fewer processes: the memory of its trace"):
        fitted(tiny_config(preset="dp", device_memory=1), 4, processes=2)
