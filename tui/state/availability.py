"""Which keys do something in which state of a run, and why the others do nothing."""

from .run_state import Phase, RunState

OBEYED = ("pause", "step", "save", "profile", "stop", "switch", "measure", "apply")
"""Actions that ask something of a living engine."""
OURS = (*OBEYED, "checkpoints", "restart", "go_on", "edit_rules")
"""Those that a run which is only watched cannot follow."""


def why_not(action: str, state: RunState) -> str:
    """Why the action is not offered; empty where it is."""
    if state.watched and action in OURS:
        return state.watched.refusal
    if state.phase is Phase.DISCONNECTED and action in (*OBEYED, "checkpoints"):
        return "this viewer is disconnected from the engine, which would obey: r restarts it, d leaves it"
    if action == "go_on" and not state.is_over:
        return "the run goes on"
    if not state.is_over:
        return ""
    if action == "restart":  # it is offered as the way on
        return "the run has ended"
    if action == "stop":
        return "the run has ended already: d closes this viewer, r goes on with the run"
    return "the run has ended, and no engine is there to obey: r goes on with it" if action in OBEYED else ""
