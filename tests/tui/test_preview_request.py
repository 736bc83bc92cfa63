"""The preview of a draft: only the answer to the last request counts, and its callback runs once."""

import msgspec
import pytest
from shardtui.engine.spec.preset import Preset
from shardtui.engine.wire.descriptions import MeshInfo, Preview
from shardtui.engine.wire.events import AnyEvent, EngineStarted, EngineStopped, PresetPreviewed
from shardtui.tui.state.draft import Draft
from shardtui.tui.state.interpreter import apply_all
from shardtui.tui.state.preview_request import NO_ENGINE, PreviewRequest, apply_problems, save_problems
from shardtui.tui.state.run_state import RunState

from ..conftest import READY, tiny_config

LIVE: list[AnyEvent] = [EngineStarted(protocol=1, pid=1, config=tiny_config()), READY]
PRESET = Preset("p", "", "", {"data": -1, "model": 2}, {"embed": ("data",)}, {}, "")
DRAFT = Draft(PRESET, PRESET, 8, frozenset({"p", "taken"}))
EDITED = DRAFT.with_rule("embed", ())


def state_after(*events: AnyEvent) -> RunState:
    state = RunState()
    apply_all(state, events)
    return state


def preview(number: int, *problems: str) -> PresetPreviewed:
    after = Preview(problems=list(problems), mesh=MeshInfo({}, []), arrays=[], argument_bytes=0, peak_bytes=0)
    return PresetPreviewed(number=number, before=after, after=after)


def test_only_the_answer_to_the_last_request_is_accepted_and_only_once() -> None:
    request = PreviewRequest()
    request.renew(state_after(*LIVE))
    first = request.command(EDITED)
    assert (first.number, first.preset) == (1, "p-edited")
    assert first.before != first.after
    request.renew(state_after(*LIVE))
    assert not request.accept(preview(first.number)), "the draft has changed since"
    answer = preview(2)
    assert request.accept(answer)
    assert not request.accept(answer)
    assert not request.accept(None)
    assert request.answer is answer


def test_the_callback_runs_once() -> None:
    request, done = PreviewRequest(), list[Preview]()
    request.renew(state_after(*LIVE))
    request.when_answered(done.append)
    request.proceed()
    assert not done, "there is no answer yet"
    answer = preview(1, "does not fit")
    assert request.accept(answer)
    assert not done, "the answer is shown first"
    request.proceed()
    request.proceed()
    assert done == [answer.after]
    request.when_answered(done.append)
    assert done == [answer.after] * 2, "the answer is known: the callback runs at once"
    request.renew(state_after(*LIVE))
    request.when_answered(done.append)
    request.renew(state_after(*LIVE))
    assert request.accept(preview(3))
    request.proceed()
    assert len(done) == 2, "the draft has changed since"


def test_a_request_is_for_one_engine() -> None:
    request, live = PreviewRequest(), state_after(*LIVE)
    assert not request.is_current(live)
    request.renew(live)
    assert request.is_current(live)
    assert not request.is_current(state_after(*LIVE, EngineStopped(step=1, reason="stopped")))
    assert not request.is_current(state_after(LIVE[0], msgspec.structs.replace(READY, simulated=False)))


@pytest.mark.parametrize(
    ("draft", "problem"),
    [
        (DRAFT, None),
        (EDITED, None),
        (EDITED.with_name("taken"), "the run already has a preset taken: choose another name"),
        (DRAFT.with_name("taken"), "the run already has a preset taken: choose another name"),
    ],
)
def test_drafts_that_cannot_be_applied_have_a_problem(draft: Draft, problem: str | None) -> None:
    assert apply_problems(draft, state_after(*LIVE)) == ([problem] if problem else [])
    ended = state_after(*LIVE, EngineStopped(step=1, reason="stopped"))
    assert apply_problems(draft, ended) == [NO_ENGINE]


def test_drafts_that_cannot_be_saved_have_a_problem() -> None:
    ended = state_after(*LIVE, EngineStopped(step=1, reason="stopped"))
    assert save_problems(EDITED, state_after(*LIVE)) == []
    assert save_problems(EDITED, ended) == [NO_ENGINE]
    assert "no mesh axis 'modle'" in save_problems(DRAFT.with_rule("embed", ("modle",)), ended)[0]
