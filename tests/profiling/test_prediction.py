"""Rates fitted to accounts, the steps predicted from them, and the file that keeps what was measured."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import msgspec
import pytest
from shardtui.engine.analysis.prediction import predict
from shardtui.engine.profiling import known_steps
from shardtui.engine.profiling.known_steps import MAX_PROGRAMS, Devices, KnownSteps, devices_of
from shardtui.engine.program.program import Program
from shardtui.engine.wire.account import Account, CollectiveTime, OperationTime, PartTime
from shardtui.engine.wire.rates import KindOfWork, Rate, Rates

RATES = {
    "matrix products": (2e-6, 1e-10),
    "other fusions": (1e-6, 1e-9),
    "copies": (1e-6, 5e-10),
    "all-reduce": (50e-6, 4e-9),
    "all-gather": (80e-6, 3e-9),
}
"""Kind of work to its latency and its seconds per unit."""
SIMULATED = Devices("cpu", 8, {"jax": "1", "jaxlib": "1"}, 2)
CHIPS = Devices("TPU v5", 8, {"jax": "1", "jaxlib": "1"}, None)


@dataclass(frozen=True)
class Step:
    """Operations of each kind with their counts and amounts, and what follows."""

    operations: Mapping[str, Sequence[tuple[float, float]]]
    waiting: float = 0.0
    idle: float = 0.0
    slow: float = 1.0
    """Times the seconds that the rates say."""

    @property
    def work(self) -> list[KindOfWork]:
        return [
            KindOfWork(kind, sum(n for n, _ in found), sum(n * size for n, size in found))
            for kind, found in self.operations.items()
        ]

    @property
    def seconds(self) -> float:
        times = (n * (RATES[kind][0] + size * RATES[kind][1]) for kind, n, size in self._each())
        return sum(times) * self.slow

    @property
    def account(self) -> Account:
        """As measured; each collective waits equally long."""
        names, known = count(), list(self._each())
        collectives = [kind for kind, *_ in known if kind.startswith("all-")]
        waits = self.waiting / max(1, len(collectives))
        operations: list[OperationTime] = []
        found: list[CollectiveTime] = []
        for kind, n, size in known:
            each = self.slow * n * (RATES[kind][0] + size * RATES[kind][1])
            name, is_collective = f"op.{next(names)}", kind in collectives
            amount = {"flops": n * size} if kind == "matrix products" else {"bytes": round(n * size)}
            part = f"{kind} over x" if is_collective else kind
            seconds = each + waits * is_collective
            operations.append(
                OperationTime(name=name, part=part, count=n, seconds=seconds, module="", source="", **amount)
            )
            if is_collective:
                found.append(_collective(name, kind, n, waits, each))
        total = self.seconds + self.waiting + self.idle
        return Account(
            program="jit_step",
            mesh={"x": 8},
            steps=5,
            step_seconds=total,
            clock_seconds=total,
            parts=[PartTime(name="idle", seconds=self.idle, share=self.idle / total)],
            devices=[],
            collectives=found,
            operations=operations,
            operations_left_out=0,
            waits=[],
            skipped=[],
        )

    def _each(self) -> list[tuple[str, float, float]]:
        return [(kind, n, size) for kind, found in self.operations.items() for n, size in found]


def _collective(name: str, kind: str, times: float, waits: float, seconds: float) -> CollectiveTime:
    return CollectiveTime(
        name=name,
        kind=kind,
        axes=["x"],
        count=times,
        seconds=seconds + waits,
        waiting_seconds=waits,
        exposed_seconds=seconds,
        hidden_seconds=0.0,
        predicted_seconds=None,
        bytes=None,
        source="",
    )


LARGE = Step(
    {
        "matrix products": [(10, 1e7), (3, 1e9)],
        "other fusions": [(40, 1e4), (9, 1e7)],
        "copies": [(7, 1e6), (2, 1e8)],
        "all-reduce": [(4, 1e6), (1, 1e8)],
        "all-gather": [(8, 1e5), (2, 1e7)],
    }
)
SMALL = Step(
    {
        "matrix products": [(30, 1e6)],
        "other fusions": [(200, 1e4)],
        "copies": [(70, 1e4)],
        "all-reduce": [(40, 1e4)],
        "all-gather": [(2, 1e3)],
    }
)
OTHER = Step({"matrix products": [(5, 1e8)], "other fusions": [(50, 1e6)], "all-reduce": [(9, 1e7)]})


def known(devices: Devices, *steps: Step) -> KnownSteps:
    found = KnownSteps(devices)
    for step in steps:
        found = found.including(step.work, step.account)
    return found


def rates_of(devices: Devices, *steps: Step) -> Rates:
    rates = known(devices, *steps).rates
    assert rates is not None
    return rates


@pytest.mark.parametrize("devices", [SIMULATED, CHIPS])
def test_known_rates_are_recovered_and_predict_a_step_that_was_not_measured(devices: Devices) -> None:
    rates = rates_of(devices, LARGE, SMALL)
    for kind, (latency, unit) in RATES.items():
        found = next(rate for rate in rates.rates if rate.kind == kind)
        assert (found.seconds_each, found.seconds_per_unit) == pytest.approx((latency, unit), rel=0.01)
    predicted = predict(OTHER.work, rates)
    assert predicted and predicted.seconds == pytest.approx(OTHER.seconds, rel=0.01)
    assert predicted.accounts == 2


@pytest.mark.parametrize("devices", [SIMULATED, CHIPS])
def test_a_step_is_predicted_as_measured_if_a_trace_has_fewer_executions_than_the_text(devices: Devices) -> None:
    text = [KindOfWork(each.kind, 3 * each.count, 2 * each.amount) for each in LARGE.work]
    rates = KnownSteps(devices).including(text, LARGE.account).rates
    predicted = predict(text, rates) if rates else None
    assert predicted and predicted.seconds == pytest.approx(LARGE.seconds)


def test_an_outlier_moves_the_rates_little() -> None:
    usual = [Step({"other fusions": [(n, 1e5), (n, 1e6)]}) for n in range(10, 60, 10)]
    slow = Step({"other fusions": [(11, 1e5), (11, 1e6)]}, slow=8.0)
    predicted = predict(usual[0].work, rates_of(CHIPS, *usual, slow))
    assert predicted and predicted.seconds == pytest.approx(usual[0].seconds, rel=0.05)


def test_the_error_is_that_of_each_step_predicted_from_the_others() -> None:
    assert rates_of(CHIPS, LARGE).error is None
    alone = predict(LARGE.work, rates_of(CHIPS, LARGE))
    assert alone and alone.error_seconds is None
    assert rates_of(CHIPS, LARGE, Step(LARGE.operations | OTHER.operations)).error == pytest.approx(0.0, abs=0.01)
    steps = [Step(OTHER.operations), Step({kind: [(2, 3e7)] for kind in OTHER.operations}, slow=1.5)]
    noisy = rates_of(CHIPS, *steps)
    assert noisy.error is not None and 0.2 < noisy.error < 0.7
    predicted = predict(OTHER.work, noisy)
    assert predicted and predicted.error_seconds == pytest.approx(noisy.error * predicted.seconds)


def test_waiting_of_chips_is_part_of_the_collectives_and_idle_time_stays() -> None:
    step = Step(OTHER.operations, waiting=0.5, idle=0.25)
    rates = rates_of(CHIPS, step)
    assert rates.other_seconds == pytest.approx(0.25)
    products = next(rate for rate in rates.rates if rate.kind == "matrix products")
    assert 5 * products.seconds_each + 5e8 * products.seconds_per_unit == pytest.approx(5 * (2e-6 + 1e-2), rel=0.01)
    predicted = predict(step.work, rates)
    assert predicted and predicted.seconds == pytest.approx(step.seconds + 0.75, rel=0.01)


def test_waiting_of_devices_that_share_cores_is_spread_over_all_work() -> None:
    step = Step(OTHER.operations, waiting=0.5, idle=0.25)
    rates = rates_of(SIMULATED, step)
    assert rates.other_seconds == 0.0
    products = next(rate for rate in rates.rates if rate.kind == "matrix products")
    longer = (step.seconds + 0.75) / step.seconds
    expected = longer * 5 * (2e-6 + 1e-2)
    assert 5 * products.seconds_each + 5e8 * products.seconds_per_unit == pytest.approx(expected, rel=0.01)


def test_a_kind_of_collective_that_was_not_measured_has_the_rate_of_all_others() -> None:
    rates = rates_of(CHIPS, OTHER)
    permutes = [KindOfWork("collective-permute", 9, 9e7)]
    reduces = [KindOfWork("all-reduce", 9, 9e7)]
    assert predict(permutes, rates) == predict(reduces, rates) is not None


def test_work_of_a_kind_that_was_not_measured_has_no_prediction() -> None:
    rates = rates_of(CHIPS, OTHER)
    assert predict([KindOfWork("copies", 1, 1e6)], rates) is None
    assert predict([], rates) is None


def test_what_was_measured_is_kept_by_devices_and_versions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    kept = known(SIMULATED, LARGE, SMALL)
    known_steps.store(kept)
    assert known_steps.load(SIMULATED) == kept
    newer = msgspec.structs.replace(SIMULATED, versions={"jax": "2", "jaxlib": "2"})
    for others in (CHIPS, newer, msgspec.structs.replace(SIMULATED, count=4)):
        assert known_steps.load(others).rates is None
    (file,) = known_steps.cache_directory().glob("rates/*.json")
    file.write_bytes(file.read_bytes()[:-9])
    assert known_steps.load(SIMULATED).steps == [], "a damaged file is begun anew"
    file.unlink()


def test_an_account_replaces_the_older_one_of_the_same_program() -> None:
    kept = known(CHIPS, OTHER, LARGE, Step(OTHER.operations, slow=2.0))
    assert len(kept.steps) == 2
    assert kept.steps[-1].step.seconds == pytest.approx(2 * OTHER.seconds)
    many = known(CHIPS, *(Step({"copies": [(n, 1e6)]}) for n in range(1, MAX_PROGRAMS + 4)))
    assert len(many.steps) == MAX_PROGRAMS


def test_devices_are_described_with_the_cores_that_simulated_ones_share() -> None:
    versions = {"python": "3", "jax": "1", "jaxlib": "2", "flax": "3"}
    assert devices_of("TPU v5", 4, "tpu", versions) == Devices("TPU v5", 4, {"jax": "1", "jaxlib": "2"}, None)
    assert (devices_of("cpu", 8, "cpu", versions).cores or 0) >= 1


@pytest.mark.parametrize(
    ("slower", "faster"),
    [
        ("tp", "dp"),  # a larger model axis sends more
        pytest.param("tp", "dp-tp2", marks=pytest.mark.slow),
        pytest.param("dp-tp2", "dp", marks=pytest.mark.slow),
        ("pitfall-same-axis", "fsdp"),  # devices that compute the same take longer
        ("pitfall-replicated-moments", "fsdp"),  # parameters are gathered twice
    ],
)
def test_presets_are_in_the_order_of_their_work(slower: str, faster: str, programs: dict[str, Program]) -> None:
    rates = Rates(
        device="cpu",
        devices=8,
        versions={},
        accounts=1,
        rates=[Rate(kind=kind, seconds_each=0.0, seconds_per_unit=unit) for kind, (_, unit) in RATES.items()]
        + [Rate(kind="collectives", seconds_each=0.0, seconds_per_unit=4e-9)],
        other_seconds=0.0,
        error=None,
    )
    longer, shorter = (predict(programs[name].description.work, rates) for name in (slower, faster))
    assert longer and shorter
    assert longer.seconds > shorter.seconds
