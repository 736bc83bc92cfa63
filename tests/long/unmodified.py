"""Programs that nobody here wrote, or that are as a library's guide has them, under `shardtui watch`:
`python tests/long/unmodified.py [NAME …] [--environments FOLDER] [--record]`
(a quarter of an hour, once half an hour to install).

Libraries that the project does not install get environments of their own.
"""

import argparse
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import zip_longest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from platformdirs import user_cache_path
from shardtui.engine.wire import events as wire
from shardtui.engine.wire.run_directory import find

from tests import suite
from tests.recorded import events_in
from tests.table import Table, python

PROGRAMS = Path(__file__).parent / "programs"
REPEATS = 2
WATCH = ("-m", "shardtui.tui", "watch", "--run")
PACKAGE = "{package}"
HEX = r"^(-?0x\S+|nan)$"
HIDDEN = re.compile(r"(\d+) arrays? (?:is|are) not shown|layout of (\d+) arrays?")
"""Counts of arrays in the warnings of a run."""
COLUMNS = {"program": "", "version": "{}", "step": "{}", "arrays with layouts": "{}", "curves": "{:,}"}
COLUMNS |= {"equal losses": "{}", "without": "seconds", "with": "seconds"}


@dataclass(frozen=True)
class Program:
    name: str
    package: str
    """Its version is shown."""
    step: str
    """The name of the function that is the step."""
    arguments: Sequence[str]
    """What follows `python`."""
    is_ours_to_install: bool = False
    """Whether it gets an environment of its own, with its package."""
    variables: Sequence[tuple[str, str]] = ()
    losses: str = HEX
    """Finds each loss as the program prints it."""
    least_python: tuple[int, int] = (3, 11)

    @property
    def key(self) -> str:
        return self.name.partition(",")[0].lower().replace(" ", "-")


def script(name: str, file: str, package: str, step: str, is_ours_to_install: bool = False) -> Program:
    return Program(name, package, step, [str(PROGRAMS / file)], is_ours_to_install)


MAXTEXT = """
hardware=cpu dataset_type=synthetic enable_checkpointing=false run_name=tried base_output_directory=maxtext
steps=20 per_device_batch_size=1 max_target_length=64 ici_fsdp_parallelism=4 ici_tensor_parallelism=2
base_emb_dim=64 base_num_query_heads=4 base_num_kv_heads=4 base_mlp_dim=128 base_num_decoder_layers=2
head_dim=16 vocab_size=256 attention=dot_product
"""
ONE_JOB = {"JAX_COORDINATOR_ADDRESS": "127.0.0.1", "JOB_INDEX": "0", "JOB_COMPLETION_INDEX": "0"}
ONE_JOB |= {"PROCESSES_IN_JOB": "1", "JAX_PROCESS_COUNT": "1"}

ALL = [
    script("Flax NNX, nnx.jit", "nnx_guide.py", "flax", "train_step"),
    script("Flax Linen, donated TrainState", "linen_guide.py", "flax", "train_step"),
    script("Optax, shard_map", "shard_map_guide.py", "optax", "update"),
    script("Equinox, filter_jit", "equinox_guide.py", "equinox", "make_step"),
    script("Haiku, jitted method", "haiku_guide.py", "dm-haiku", "_update"),
    script("NumPyro, SVI", "numpyro_svi.py", "numpyro", "update", True),
    script("FlowJAX, fit_to_data", "flowjax_fit.py", "flowjax", "step", True),
    script("Brax, PPO", "brax_ppo.py", "brax", "training_epoch", True),
    script("Tunix, PeftTrainer", "tunix_trainer.py", "google-tunix", "_train_step", True),
    Program(
        "MaxText, its trainer",
        "maxtext",
        "train_step",
        ["-m", "maxtext.trainers.pre_train.train", f"{PACKAGE}/configs/base.yml", *MAXTEXT.split()],
        is_ours_to_install=True,
        variables=[*ONE_JOB.items()],
        losses=r" loss: (\S+?),",
        least_python=(3, 12),
    ),
]


class Environment:
    """A Python environment. Those that are made here stay, and are made anew for another tree."""

    def __init__(self, program: Program, folder: Path) -> None:
        self._program = program
        self._own = folder / python() / program.package if program.is_ours_to_install else None
        self.python = str(self._own / "bin/python") if self._own else sys.executable

    def prepare(self) -> None:
        """Installs what is missing: the package, then shardtui, which changes nothing that the package has brought."""
        complete = self._own and self._own / "complete"
        if not self._own or not complete or (complete.exists() and complete.read_text() == str(suite.ROOT)):
            return
        subprocess.run([sys.executable, "-m", "venv", self._own], check=True)
        self._pip("install", "--quiet", self._program.package)
        kept = self._own / "kept.txt"
        frozen = self._pip("freeze", "--exclude", "shardtui").splitlines()
        kept.write_text("\n".join(line for line in frozen if "==" in line))
        self._pip("install", "--quiet", "--constraint", str(kept), "--editable", str(suite.ROOT))
        complete.write_text(str(suite.ROOT))

    @cached_property
    def version(self) -> str:
        return self.says(f"import importlib.metadata as m; print(m.version({self._program.package!r}))")

    def filled(self, argument: str) -> str:
        """Puts the folder of the package in the place of `{package}`."""
        found = f"importlib.util.find_spec({self._program.package!r})"
        code = f"import importlib.util; print(*{found}.submodule_search_locations)"
        return argument.replace(PACKAGE, self.says(code)) if PACKAGE in argument else argument

    def says(self, code: str) -> str:
        return subprocess.run([self.python, "-c", code], capture_output=True, text=True, check=True).stdout.strip()

    def _pip(self, *arguments: str) -> str:
        command = [self.python, "-m", "pip", *arguments]
        return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--environments", type=Path, default=user_cache_path("shardtui") / "environments")
    parser.add_argument("--record", action="store_true", help="write what is measured to docs/data")
    runnable = {program.key: program for program in ALL if sys.version_info >= program.least_python}
    options = suite.arguments(parser, runnable)
    folder = options.environments.resolve()
    chosen = [(program := runnable[name], Environment(program, folder)) for name in options.names]
    for _, environment in chosen:
        environment.prepare()
    command = "python tests/long/unmodified.py"
    with Table("long/unmodified", COLUMNS, options.record, command) as table, suite.own_directories():
        for program, environment in chosen:
            table.add(program.name, environment.version, *tried(program, environment))


def tried(program: Program, environment: Environment) -> list[str | int | float]:
    """Runs it twice plain and twice watched, in turn; the times are the lesser ones."""
    runs = [f"{program.key}-{number}" for number in range(REPEATS)]
    pairs = [(ended(program, environment), ended(program, environment, *WATCH, run)) for run in runs]
    plain, watched = zip(*pairs, strict=True)
    events = list(events_in(find(runs[-1]).events))
    losses = [losses for losses, _ in (*plain, *watched)]
    seconds = [min(seconds for _, seconds in kind) for kind in (plain, watched)]
    return [step(program, events), arrays(events), curves(events), equal(losses), *seconds]


def ended(program: Program, environment: Environment, *before: str) -> tuple[list[str], float]:
    """Returns its losses, as it prints them, and the seconds that the process took."""
    command = [environment.python, *before, *map(environment.filled, program.arguments)]
    own = {**os.environ, **dict(program.variables), "PYTHONHASHSEED": "0"}  # programs go through sets of names
    began = time.monotonic()
    run = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=own)
    seconds = time.monotonic() - began
    if run.returncode:
        sys.exit(f"{run.stdout}\n{program.name} ended with {run.returncode}: {' '.join(command)}")
    return re.findall(program.losses, run.stdout, re.MULTILINE), seconds


def step(program: Program, events: Iterable[wire.Event]) -> str:
    """Names the function that was the step at the end, and says whether it is another one than it should be."""
    names = [event.step.name.rpartition(".")[2] for event in events if isinstance(event, wire.StepFound)]
    return program.step if names[-1] == program.step else f"{names[-1]} ✗ {program.step}"


def arrays(events: Iterable[wire.Event]) -> str:
    layouts = [event for event in events if isinstance(event, wire.PresetCompiled)]
    warnings = [warning for event in events if isinstance(event, wire.EngineReady) for warning in event.warnings]
    hidden = sum(int(one or other) for warning in warnings for one, other in HIDDEN.findall(warning))
    shown = len(layouts[0].arrays) if layouts else 0
    return f"{shown} of {shown + hidden}"


def curves(events: Iterable[wire.Event]) -> int:
    reports = [event for event in events if isinstance(event, wire.StepsDone)]
    has_loss = any(loss is not None for report in reports for loss in report.losses)
    return len({name for report in reports for name in report.metrics}) + has_loss


def equal(losses: Sequence[Sequence[str]]) -> str:
    """Counts the steps whose losses are the same in all runs."""
    same = sum(len({*each}) == 1 for each in zip_longest(*losses))
    return f"{same} of {max(map(len, losses))}"


if __name__ == "__main__":
    main()
