"""Which keys do something in which state of a run, and why the others do nothing."""

from .run_state import Phase, RunState

ENGINE_ACTIONS = ("pause", "step", "save", "profile", "stop", "switch", "measure", "measure_numbers", "apply")
"""Actions that need a live engine."""
RUN_ACTIONS = (*ENGINE_ACTIONS, "checkpoints", "restart", "resume", "edit_rules")


def why_not(action: str, state: RunState) -> str:
    """Returns why the action is not available; empty if it is."""
    if state.playback and action == "pause":
        return ""
    if action == "speed":
        return "" if state.playback else "only a replay has a speed"
    if action == "skip_lesson":
        return "" if state.tour and state.tour.lesson else "only `shardtui tour` has lessons"
    if action == "experts":
        return "" if state.has_experts else "this model has no experts"
    if action == "nonfinite":
        return "" if state.nonfinite else "no non-finite value was explained in this run"
    if action == "cancel_switch":
        return "" if (state.pending or state.requested) and not state.playback else "no switch is under way"
    if state.playback and action in RUN_ACTIONS:
        return "this is a replay: it sends no commands"
    if state.watched and action in RUN_ACTIONS:
        return state.watched.refusal
    if state.host and (action in ("restart", "resume") or (state.is_over and action == "checkpoints")):
        return f"the run is on {state.host}: `shardtui --resume {state.name.rpartition(':')[2]}` resumes it there"
    if state.reconnecting and action in (*ENGINE_ACTIONS, "checkpoints"):
        return f"no connection to {state.host}: connecting again"
    if state.phase is Phase.DISCONNECTED and action in (*ENGINE_ACTIONS, "checkpoints"):
        return "disconnected from the engine: r restarts it, d detaches"
    if action == "resume" and not state.is_over:
        return "the run has not ended"
    if not state.is_over:
        return ""
    if action == "restart":  # `resume` is offered instead
        return "the run has ended"
    if action == "stop":
        return "the run has already ended: d closes this viewer, r resumes the run"
    return "the run has ended: r resumes it" if action in ENGINE_ACTIONS else ""
