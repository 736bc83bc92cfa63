"""The step that the partitioner's passes explain for a run: its active preset's, on simulated devices."""

import msgspec

from ...engine.origins.explanation import StepRequest
from ...engine.spec.preset import reference
from .run_state import RunState

NOT_KEPT = "the step of this run is not known: give watch the jitted function and its args, or step.lower(…)"
NO_RULES = "a run in an external loop has no rules to try: its shardings are in its program"


def explained_step(state: RunState) -> StepRequest | None:
    """Returns the active preset's step; None if the run has no configuration, or no preset yet."""
    if state.config is None or state.ready is None or not state.preset:
        return None
    info, devices = state.preset_info(state.preset), state.ready.devices
    config = msgspec.structs.replace(
        state.config,
        preset=reference(info.name, info.source) if info else state.preset,
        devices=len(devices) or state.config.devices,
        platform=devices[0].platform if devices else state.config.platform,
    )
    return StepRequest(config=config, is_simulated=True)
