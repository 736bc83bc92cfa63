"""Times of an account by kind of work and size: what rates are fitted to."""

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence

from msgspec import Struct

from ..wire.account import Account, OperationTime
from ..wire.rates import KindOfWork
from .program import COPIES, FUSIONS, PRODUCTS
from .recording import HOST, IDLE, INPUT, OTHER_PROGRAMS
from .step_work import is_small

WORK = (PRODUCTS, FUSIONS, COPIES)


class Sample(Struct, frozen=True):
    """Operations of one kind and of similar size. Sums per step, means of the devices."""

    kind: str
    """As in `KindOfWork`."""
    count: float
    """Executions."""
    amount: float
    """FLOPs or bytes, as in `KindOfWork`."""
    seconds: float
    """Seconds."""


class MeasuredStep(Struct, frozen=True):
    """The step of one program, as measured."""

    program: str
    """Digest of its work, by which it is known again."""
    seconds: float
    """Seconds of a step."""
    other_seconds: float
    """Those in which a device did nothing that the samples have."""
    samples: list[Sample]
    """The rest, by kind and size."""


def measured_step(program: str, account: Account, work: Sequence[KindOfWork], shares_cores: bool) -> MeasuredStep:
    """Returns the times of an account, so divided that they add up to the step.

    `work`: of the program by its text. Where a trace has fewer executions, because a device runs a small loop as one
    operation, and where an account does not list all operations, the times are those of the text's work: only with
    that are they compared.

    On accelerators, waiting counts as part of the collective that waits; idle time and the host's are the rest. What is
    hidden behind work counts as that work.

    `shares_cores`: the devices are simulated and share a few cores. Then a device that waits or idles only leaves the
    cores to another: the step takes as long as the work of all devices, and waiting follows from that. So the step is
    divided in proportion to the times in which operations were at work. With their waiting, collectives would seem slow
    where in truth the products of other devices took the time.
    """
    step = account.clock_seconds or account.step_seconds
    waiting = {each.name: 0.0 if shares_cores else each.waiting_seconds for each in account.collectives}
    found = list(_as_in_text(list(_samples(account, waiting)), work))
    rest = sum(part.seconds for part in account.parts if part.name in (INPUT, HOST, IDLE, OTHER_PROGRAMS))
    other = 0.0 if shares_cores else rest
    scale = (step - other) / (sum(each.seconds for each in found) or 1.0)
    scaled = [Sample(each.kind, each.count, each.amount, each.seconds * scale) for each in found]
    return MeasuredStep(program, step, other, scaled)


def _samples(account: Account, waiting: dict[str, float]) -> Iterator[Sample]:
    collectives = {each.name: each for each in account.collectives}
    sums = defaultdict[tuple[str, int], list[float]](lambda: [0.0, 0.0, 0.0])
    for each in account.operations:
        info = collectives.get(each.name)
        kind = info.kind if info else each.part
        seconds = info.exposed_seconds + waiting[each.name] if info else each.seconds
        amount = _amount(each)
        if each.count and (info or kind in WORK) and not is_small(kind, amount / each.count):
            total = sums[kind, math.frexp(amount / each.count)[1]]
            for at, value in enumerate((each.count, amount, seconds)):
                total[at] += value
    return (Sample(kind, *total) for (kind, _), total in sorted(sums.items()))


def _as_in_text(samples: Sequence[Sample], work: Sequence[KindOfWork]) -> Iterator[Sample]:
    """Scales counts and amounts so that the sums by kind are those of the text."""
    for kind in sorted({each.kind for each in samples} & {each.kind for each in work}):
        same, text = [each for each in samples if each.kind == kind], next(each for each in work if each.kind == kind)
        by_count = text.count / sum(each.count for each in same)
        by_amount = text.amount / (sum(each.amount for each in same) or 1.0)
        yield from (Sample(kind, s.count * by_count, s.amount * by_amount, s.seconds) for s in same)


def _amount(each: OperationTime) -> float:
    return (each.flops if each.part == PRODUCTS else each.bytes) or 0.0
