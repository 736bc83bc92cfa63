"""Step times of all presets, predicted from the accounts of three: `python tests/long/predictions.py [--record]
[--keep FOLDER] [MODEL …]` (ten minutes on two idle cores). Eight simulated devices share the cores of the machine.

A step's time is here the processor time that it takes, by the number of cores: other programs on the machine change
that least. Presets take turns, and of each the least time counts. With `--keep`, what was measured is kept in the
folder, and not measured again.
"""

import argparse
import contextlib
import os
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median

os.environ |= {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "8"}
sys.path.insert(0, str(Path(__file__).parents[2]))

import jax
import msgspec
from msgspec.structs import replace
from shardtui.engine.analysis.hlo import parse
from shardtui.engine.analysis.prediction import predict
from shardtui.engine.base.invalid import Invalid
from shardtui.engine.base.versions import versions as installed
from shardtui.engine.models.task import TrainState
from shardtui.engine.profiling.account import read_account
from shardtui.engine.profiling.known_steps import KnownSteps, devices_of
from shardtui.engine.profiling.step_work import step_work
from shardtui.engine.program.memory import keep_freed_blocks
from shardtui.engine.spec.preset_files import is_pitfall
from shardtui.engine.spec.preset_reader import load_presets
from shardtui.engine.wire.account import Account
from shardtui.engine.wire.rates import StepPrediction

from tests.bench.plain import Plain, config
from tests.suite import versions
from tests.table import Table, arguments

MODELS = {"nano": (), "nano-256": ("embed=256", "mlp=1024")}
"""Name to settings of `nano`."""
MEASURED = ("dp", "tp", "fsdp-tp2")
"""Presets whose accounts the rates are fitted to."""
TURNS = 4
COLUMNS = {
    "model": "",
    "presets predicted": "",
    "rank correlation": "{:.2f}",
    "median error": "part",
    "largest error": "part",
    "error bar": "part",
}
STEP_COLUMNS = {"model": "", "preset": "", "a step, predicted": "seconds", "measured": "seconds", "error": "{:+.0%}"}


class Measured(msgspec.Struct):
    """A preset, as measured."""

    mesh: dict[str, int]
    """Axis to size."""
    text: str
    """Of the compiled step."""
    seconds: float = float("inf")
    """The least of a step."""
    account: Account | None = None
    """Of the traced step that took least."""


class Preset:
    """A preset that trains."""

    def __init__(self, plain: Plain) -> None:
        self.plain = plain
        self.state: TrainState = plain.state()
        self.batch = plain.batch(0)
        self.found = Measured(dict(plain.placement.mesh.shape), plain.step.as_text() or "")
        self.step()

    def step(self) -> float:
        """Returns the processor seconds of a step by the number of cores."""
        jax.block_until_ready(self.state)
        began = time.process_time()
        with jax.profiler.StepTraceAnnotation("train", step_num=0):
            self.state, _ = self.plain.step(self.state, self.batch)
        jax.block_until_ready(self.state)
        return (time.process_time() - began) / len(os.sched_getaffinity(0))

    def turn(self) -> None:
        """Measures a step."""
        self.found.seconds = min(self.found.seconds, self.step())

    def trace(self) -> None:
        """Traces a step, and keeps its account if it took least."""
        options = jax.profiler.ProfileOptions()
        options.python_tracer_level, options.host_tracer_level = 0, 1
        with tempfile.TemporaryDirectory() as folder:
            with jax.profiler.trace(folder, profiler_options=options):
                seconds = self.step()
            (path,) = Path(folder).rglob("*.xplane.pb")
            if self.found.account is None or seconds < (self.found.account.clock_seconds or 0):
                account = read_account(path, self.found.mesh, self.found.text)
                self.found.account = replace(account, clock_seconds=seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keep", type=Path, help="a folder that keeps what was measured")
    parser.add_argument("models", nargs="*", metavar="MODEL", help=f"{', '.join(MODELS)}; all by default")
    options = arguments(parser)
    print(f"{versions()}\n")
    keep_freed_blocks()
    command = " ".join(["python tests/long/predictions.py", *options.models])
    with contextlib.ExitStack() as stack:
        folder = options.keep or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        table = stack.enter_context(Table("long/predictions", COLUMNS, options.record, command))
        steps = stack.enter_context(Table("long/predicted_steps", STEP_COLUMNS, options.record, command))
        for model in options.models or MODELS:
            measured = kept(folder / f"{model}.json", MODELS[model])
            predicted = predictions(measured)
            errors = {name: found.seconds / measured[name].seconds - 1 for name, found in predicted.items()}
            for name, found in sorted(predicted.items(), key=lambda item: item[1].seconds):
                steps.add(model, name, found.seconds, measured[name].seconds, errors[name])
            table.add(model, len(predicted), *summary(measured, predicted, list(errors.values())))


def kept(file: Path, settings: Sequence[str]) -> dict[str, Measured]:
    """What was measured, now or before."""
    if not file.exists():
        file.write_bytes(msgspec.json.encode(measured(settings)))
    return msgspec.json.decode(file.read_bytes(), type=dict[str, Measured])


def measured(settings: Sequence[str]) -> dict[str, Measured]:
    """All presets that fit, after their turns."""
    presets: dict[str, Preset] = {}
    for name in (preset.name for preset in load_presets()[0] if not is_pitfall(preset.name)):
        with contextlib.suppress(Invalid):
            presets[name] = Preset(Plain(config(*settings, preset=name)))
            print(f"compiled {name}", file=sys.stderr)
    for turn in range(TURNS):
        for name, preset in presets.items():
            preset.turn()
            if name in MEASURED:
                preset.trace()
        print(f"turn {turn + 1} of {TURNS}", file=sys.stderr)
    return {name: preset.found for name, preset in presets.items()}


def predictions(measured: Mapping[str, Measured]) -> dict[str, StepPrediction]:
    """Of the presets whose accounts are not used."""
    device = jax.devices()[0]
    known = KnownSteps(devices_of(device.device_kind, len(jax.devices()), device.platform, installed()))
    work = {name: step_work(parse(found.text), found.mesh) for name, found in measured.items()}
    for name in MEASURED:
        account = measured[name].account
        assert account is not None
        known = known.including(work[name], account)
    rates = known.rates
    assert rates is not None
    found = {name: predict(each, rates) for name, each in work.items() if name not in MEASURED}
    return {name: each for name, each in found.items() if each}


def summary(
    measured: Mapping[str, Measured], predicted: Mapping[str, StepPrediction], errors: Sequence[float]
) -> tuple[float, float, float, float]:
    """Rank correlation, median and largest error, and the error bar."""
    order = correlation([each.seconds for each in predicted.values()], [measured[name].seconds for name in predicted])
    first = next(iter(predicted.values()))
    return order, median(map(abs, errors)), max(map(abs, errors)), (first.error_seconds or 0.0) / first.seconds


def correlation(one: Sequence[float], other: Sequence[float]) -> float:
    """Spearman's, of values without ties."""
    n = len(one)
    apart = sum((a - b) ** 2 for a, b in zip(ranks(one), ranks(other), strict=True))
    return 1 - 6 * apart / (n * (n * n - 1))


def ranks(values: Sequence[float]) -> list[int]:
    order = sorted(range(len(values)), key=lambda at: values[at])
    return [order.index(at) for at in range(len(values))]


if __name__ == "__main__":
    main()
