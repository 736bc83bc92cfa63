"""A preset that is being edited: its values, name and problems, and its preview: only the last answer counts."""

from pathlib import Path

import jax
import msgspec
import pytest
from shardtui.engine.base.user_error import UserError
from shardtui.engine.models.task import Task
from shardtui.engine.program.placement import place
from shardtui.engine.spec.preset import Override, Preset
from shardtui.engine.spec.preset_reader import REST, load_preset, parse_preset
from shardtui.engine.wire.descriptions import MeshInfo, Preview
from shardtui.engine.wire.events import AnyEvent, EngineStopped, PresetPreviewed
from shardtui.tui.state.draft import Draft, replaced_by
from shardtui.tui.state.interpreter import apply_all
from shardtui.tui.state.preview_request import NO_ENGINE, PreviewRequest, apply_problems, save_problems
from shardtui.tui.state.run_state import RunState
from shardtui.tui.widgets.prompt import NEW_AXIS, with_text
from shardtui.tui.widgets.rule_list import Row, is_about, rows_of, value_of

from ..conftest import READY
from ..recorded import started


def draft(mesh: dict[str, int], devices: int = 8, name: str = "p", **rules: tuple[str, ...]) -> Draft:
    preset = Preset(name, "", "", mesh, {logical: (axes,) for logical, axes in rules.items()}, {}, "")
    return Draft(preset, preset, devices, frozenset({name, "dp"}))


TWO = draft({"data": REST, "model": 2})


@pytest.mark.parametrize(
    ("mesh", "axis", "fitting", "larger", "smaller"),
    [
        ({"data": REST, "model": 2}, "model", [1, 2, 4, 8], {"data": 2, "model": 4}, {"data": 8, "model": 1}),
        ({"data": REST, "model": 2}, "data", [1, 2, 4, 8], {"data": 8, "model": 1}, {"data": 2, "model": 4}),
        ({"data": 4, "model": 2}, "data", [1, 2, 4, 8], {"data": 8, "model": 1}, {"data": 2, "model": 4}),
        ({"a": 2, "b": 2, "c": REST}, "b", [1, 2, 4], {"a": 2, "b": 4, "c": 1}, {"a": 2, "b": 1, "c": 4}),
        ({"data": REST}, "data", [], {"data": 8}, {"data": 8}),
    ],
)
def test_sizes_step_through_those_that_fill_the_devices(
    mesh: dict[str, int], axis: str, fitting: list[int], larger: dict[str, int], smaller: dict[str, int]
) -> None:
    before = draft(mesh)
    assert before.fitting_sizes(axis) == fitting
    assert before.next_size(axis, 1).sizes == larger
    assert before.next_size(axis, -1).sizes == smaller
    assert not before.next_size(axis, 1).problems()
    assert before.next_size(axis, 1).next_size(axis, -1).sizes == before.sizes


def test_one_axis_takes_the_remaining_devices() -> None:
    assert TWO.with_size("model", REST).preset.mesh == {"data": 4, "model": REST}
    assert TWO.with_size("data", 3).preset.mesh == {"data": 3, "model": REST}
    assert "needs a multiple of 3 devices, 8 found" in TWO.with_size("data", 3).problems()[0]
    assert TWO.without_axis("data").preset.mesh == {"model": REST}
    assert TWO.with_axis("seq").sizes == {"data": 4, "model": 2, "seq": 1}
    assert draft({"data": REST}).without_axis("data").preset.mesh == {"data": REST}
    mesh = load_preset("fsdp4-model2")  # whose name is a mesh
    assert Draft(mesh, mesh, 8, frozenset()).next_size("model", 1).sizes == {"fsdp": 2, "model": 4}


def test_rules_step_through_suggestions_and_back() -> None:
    before = draft(TWO.preset.mesh, embed=("data",))
    assert before.suggestions() == [(), ("data",), ("model",), ("data", "model")]
    assert before.next_rule("embed", 1).preset.axes("embed") == ("model",)
    assert before.next_rule("mlp", -1).preset.axes("mlp") == ("data", "model")
    around = before
    for _ in before.suggestions():
        around = around.next_rule("embed", 1)
    assert around.preset == before.preset
    assert not around.is_changed
    assert before.with_rule("embed", ("model", "data")).next_rule("embed", 1).preset.axes("embed") == ()
    assert before.without_axis("data").preset.rules == {}


def test_an_explicit_unsharded_rule_is_kept_and_an_axis_that_follows_another_can_be_unsharded() -> None:
    before = draft({"data": REST}, embed=())
    assert before.with_rule("embed", ("data",)).with_rule("embed", ()).preset == before.preset
    before = draft(TWO.preset.mesh, heads=("model",))
    after = before.with_rule("saved_embed", ())
    row = Row("rule", "saved_embed")
    assert [value_of(row, each) for each in (before, after, after.reset())] == ["like heads", "unsharded", "like heads"]
    assert after.edits == ["saved_embed = unsharded"]
    assert 'saved_embed = ""' in after.text


def test_name_and_summary_mention_the_original_preset() -> None:
    before = draft(TWO.preset.mesh, name="fsdp", embed=("data",))
    assert before.name == "fsdp"
    after = before.with_rule("embed", ("data", "model")).next_size("model", 1)
    assert after.name == "fsdp-edited"
    assert Draft(after.preset, after.preset, 8, frozenset({"fsdp-edited"})).name == "fsdp"
    edited = parse_preset(Path("fsdp-edited.toml"), after.text)
    assert Draft(edited, before.preset, 8, frozenset({"fsdp", "fsdp-edited"})).name == "fsdp-edited-2"
    assert after.with_name("mine").name == "mine"
    assert after.edits == ["model = 4", "embed = data+model"]
    assert edited.summary == "fsdp with model = 4, embed = data+model"
    assert not after.reset().is_changed
    pitfall = draft(TWO.preset.mesh, name="pitfall-same-axis").with_rule("mlp", ("model",))
    assert pitfall.name == "same-axis-edited", "an edited pitfall is an ordinary preset"


@pytest.mark.parametrize(
    ("row", "text", "says"),
    [
        (Row("name", "name"), "../x", "a preset's name has 1 to 64 letters"),
        (Row("axis", "data"), "three", "a size must be from 1 to 1,000,000, or -1"),
        (Row("axis", "data"), "0", "a size must be from 1"),
        (Row("axis", "data"), "9" * 5000, "a size must be from 1"),
        (NEW_AXIS, "a b", "an axis name has only letters, digits and _"),
        (NEW_AXIS, "", "an axis name has only letters"),
    ],
)
def test_invalid_text_is_refused(row: Row, text: str, says: str) -> None:
    with pytest.raises(UserError, match=says):
        with_text(draft({"data": REST}), row, text)


def test_typed_text_is_parsed() -> None:
    for text in ("data, model", "data model", "data+model"):
        assert with_text(TWO, Row("rule", "embed"), text).preset.axes("embed") == ("data", "model")
    assert with_text(TWO, Row("rule", "embed"), "unsharded").preset == TWO.preset
    assert with_text(TWO, Row("axis", "model"), "-1").preset.mesh == {"data": 4, "model": REST}
    assert with_text(TWO, NEW_AXIS, "model") == TWO
    assert with_text(with_text(TWO, Row("name", "name"), "mine"), Row("name", "name"), "").name == "p"


SPLIT = draft(TWO.preset.mesh, batch=("data",), embed=("data",))
OVERRIDDEN = Preset("p", "", "", TWO.preset.mesh, {}, {"*.kernel": Override((("model",),))}, "")
CROWDED = draft(TWO.preset.mesh | {f"a{number}": 1 for number in range(16)})
MESH = "heading:mesh of 8 devices"


@pytest.mark.parametrize(
    ("wrong", "says", "rows"),
    [
        (SPLIT.with_rule("layers", ("data",)), "layers 2 does not divide by 4: make it 4", ["rule:layers"]),
        (SPLIT.with_rule("mlp", ("modle",)), "[rules] mlp: no mesh axis 'modle': the mesh has data", ["rule:mlp"]),
        (SPLIT.with_rule("mlp", ("data", "data")), "mesh axis 'data' is named twice: an array can", ["rule:mlp"]),
        (SPLIT.with_rule("vocab", ("data",)), "data already splits another dim: give embed", ["rule:embed"]),
        (SPLIT.with_size("model", 3), "needs a multiple of 3 devices, 8 found: use 6 devices or", [MESH]),
        (Draft(OVERRIDDEN, OVERRIDDEN, 8, frozenset()).without_axis("model"), "'model'", ["override:*.kernel"]),
        (SPLIT.with_rule("mlp", ("modle",)).with_size("model", 3), "", ["rule:mlp", MESH]),
        (CROWDED, "[mesh]: 18 axes: use at most 16", [MESH]),
    ],
)
def test_each_problem_is_shown_at_its_row(task: Task, wrong: Draft, says: str, rows: list[str]) -> None:
    with pytest.raises(UserError) as refused:
        place(task, parse_preset(Path(f"{wrong.name}.toml"), wrong.text), jax.devices())
    about = [problem for problem in refused.value.problems if says in problem]
    listed = list(rows_of(wrong, ["batch", "embed", "mlp", "vocab", "layers"]))
    assert [row.id for problem in about for row in listed if is_about(row, problem)] == rows


def test_saving_under_an_existing_name_asks_first(home: Path) -> None:
    folder = home / "config/shardtui/presets/parallelism"
    assert replaced_by(folder / "mine.toml") is None
    assert "fsdp is built in" in (replaced_by(folder / "fsdp.toml") or "")
    assert "names a mesh" in (replaced_by(folder / "fsdp4-model2.toml") or "")
    folder.mkdir(parents=True)
    (folder / "mine.toml").write_text("")
    assert "mine.toml already exists" in (replaced_by(folder / "mine.toml") or "")


PRESET = Preset("p", "", "", {"data": -1, "model": 2}, {"embed": (("data",),)}, {}, "")
DRAFT = Draft(PRESET, PRESET, 8, frozenset({"p", "taken"}))
EDITED = DRAFT.with_rule("embed", ())


def state_after(*events: AnyEvent) -> RunState:
    state = RunState()
    apply_all(state, events)
    return state


LIVE, ENDED = state_after(started(), READY), state_after(started(), READY, EngineStopped(step=1, reason="stopped"))


def preview(number: int, *problems: str) -> PresetPreviewed:
    after = Preview(problems=list(problems), mesh=MeshInfo({}, []), arrays=[], argument_bytes=0, peak_bytes=0)
    return PresetPreviewed(number=number, before=after, after=after)


def test_only_the_answer_to_the_last_request_to_this_engine_is_accepted_and_only_once() -> None:
    request = PreviewRequest()
    assert not request.is_current(LIVE)
    request.renew(LIVE)
    first = request.command(EDITED)
    assert (first.number, first.preset) == (1, "p-edited")
    assert first.before != first.after
    assert request.is_current(LIVE)
    assert not request.is_current(ENDED)
    assert not request.is_current(state_after(started(), msgspec.structs.replace(READY, simulated=False)))
    request.renew(LIVE)
    assert not request.accept(preview(first.number)), "the draft has changed since"
    answer = preview(2)
    assert request.accept(answer)
    assert not request.accept(answer)
    assert not request.accept(None)
    assert request.answer is answer


def test_the_callback_runs_once() -> None:
    request, done = PreviewRequest(), list[Preview]()
    request.renew(LIVE)
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
    request.renew(LIVE)
    request.when_answered(done.append)
    request.renew(LIVE)
    assert request.accept(preview(3))
    request.proceed()
    assert len(done) == 2, "the draft has changed since"


def test_drafts_that_cannot_be_applied_or_saved_have_a_problem() -> None:
    for draft in (DRAFT, EDITED):
        assert apply_problems(draft, LIVE) == []
        (problem,) = apply_problems(draft.with_name("taken"), LIVE)
        assert "the run already has a preset taken" in problem
        assert apply_problems(draft, ENDED) == [NO_ENGINE]
    assert save_problems(EDITED, LIVE) == []
    assert save_problems(EDITED, ENDED) == [NO_ENGINE]
    assert "no mesh axis 'modle'" in save_problems(DRAFT.with_rule("embed", ("modle",)), ENDED)[0]
