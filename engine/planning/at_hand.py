"""Predicted step times on a slice like the one at hand: by the rates that were measured on it."""

from ..analysis.prediction import predict
from ..base.versions import versions
from ..profiling.known_steps import devices_of, load
from ..spec.topology import Topology
from ..wire.rates import StepPrediction
from .ranking import Cost


def predicted_on(topology: Topology, cost: Cost) -> StepPrediction | None:
    """Returns the time of a step of a compiled program; None if no step was measured on such a slice.

    Also None for several slices: accounts of steps do not tell the rates of ICI and DCN apart.
    """
    if topology.domains > 1:
        return None
    for kind in topology.chip.kinds:
        known = load(devices_of(kind, topology.devices, topology.platform, versions()))
        if rates := known.rates:
            return predict(cost.work, rates)
    return None
