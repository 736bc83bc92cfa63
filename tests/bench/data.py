"""Whether steps ever wait for data."""

from statistics import median

from shardtui.engine.wire import run_directory
from shardtui.engine.wire.events import StepsDone

from ..recorded import events_in
from ..suite import printed
from .figure import Figure, at_least, at_most, ratios, timed
from .plain import Plain, config

REPEATS = 5
BATCHES = 300
STEPS = 40


def run() -> list[Figure]:
    plain = Plain(config())
    needed = [1 / plain.seconds(STEPS // 4) for _ in range(REPEATS)]
    offered = [BATCHES / timed(lambda: [plain.batches[number] for number in range(BATCHES)]) for _ in range(REPEATS)]
    waits = [_waited(f"waiting-{number}") for number in range(REPEATS)]
    against = f"nano: {median(needed):.1f} batches/s"
    return [
        at_least(20, "batches of the loader ÷ batches that nano takes", ratios(offered, needed), "×", against),
        at_most(0.01, "wait for input ÷ step, nano", waits, "×", "the step's time"),
    ]


def _waited(run: str) -> float:
    printed("-m", "shardtui.tui", "train", "--json", f"--run={run}", f"--steps={STEPS}")
    done = [event for event in events_in(run_directory.find(run).events) if isinstance(event, StepsDone)]
    return sum(event.input_wait_seconds for event in done) / sum(sum(event.step_seconds) for event in done)
