"""What a step has to do, the rates at which devices did such work, and the time that follows from both."""

from msgspec import Struct


class KindOfWork(Struct, frozen=True):
    """All operations of one kind in a step on one device."""

    kind: str
    """`matrix products`, `other fusions`, `copies`, or a kind of collective, such as `all-reduce`."""
    count: float
    """Executions per step."""
    amount: float
    """Per step: FLOPs of matrix products, bytes that a collective sends, of others the bytes read and written."""


class Rate(Struct, frozen=True, kw_only=True):
    """How fast devices do one kind of work: an execution takes `seconds_each` + its amount × `seconds_per_unit`."""

    kind: str
    """As in `KindOfWork`; `collectives` for kinds of collectives that were not measured."""
    seconds_each: float
    """Seconds of an execution, however small."""
    seconds_per_unit: float
    """Seconds per FLOP or byte."""


class Rates(Struct, frozen=True, kw_only=True):
    """Rates of devices of one kind, fitted to accounts of steps."""

    device: str
    """Kind of the devices, as jax reports it."""
    devices: int
    """How many devices the steps ran on."""
    versions: dict[str, str]
    """Versions of jax and jaxlib."""
    accounts: int
    """Steps of different programs that the rates are fitted to."""
    rates: list[Rate]
    """One for each kind of work."""
    other_seconds: float
    """Seconds per step in which the devices do none of this work."""
    error: float | None
    """Typical error of a prediction, as a fraction: of each account's step, predicted from the others. Null for one
    account."""


class StepPrediction(Struct, frozen=True, kw_only=True):
    """The time of a step, predicted from its compiled text and the rates of its devices."""

    seconds: float
    """Seconds per step."""
    error_seconds: float | None
    """Typical error, up or down, in seconds; null if the rates come from the account of one program."""
    accounts: int
    """Accounts that the rates are fitted to."""
