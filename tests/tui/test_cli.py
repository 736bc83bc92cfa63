"""The command line as a user has it: a process, its output, its exit code, and what it leaves behind."""

import os
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pytest
from shardtui.engine.spec.config import CheckpointConfig
from shardtui.engine.wire import events as wire
from shardtui.engine.wire import lock, run_directory
from shardtui.engine.wire.run_directory import RunDirectory
from shardtui.tui.cli.main import _parser, main
from shardtui.tui.cli.train import _newest_checkpoint, _print_summary
from shardtui.tui.state.interpreter import apply, apply_all
from shardtui.tui.state.run_state import RunState

from ..command import answered
from ..conftest import READY, SETTINGS, SHARDTUI, WITH_DROPOUT, tiny_config
from ..programs import OF_EXPERTS
from ..recorded import preset_info, restored, steps
from ..recorded import started as started_event
from ..schemas import checked, checked_lines


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*SHARDTUI, *arguments], capture_output=True, text=True, env={**os.environ, **environment}, timeout=240
    )


def started(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen([*SHARDTUI, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def train(*arguments: str, settings: list[str] = SETTINGS) -> list[dict[str, Any]]:
    result = run("train", "--json", *settings, *arguments)
    assert result.returncode == 0, result.stderr
    return checked_lines("events", result.stdout)


def losses(events: list[dict[str, Any]]) -> list[float]:
    return [event["loss"] for event in events if event["type"] == "StepDone"]


def test_the_newest_checkpoint_is_found_if_the_engine_was_killed_before_it_told_of_it(tmp_path: Path) -> None:
    for name in ("9", "10", "12.damaged", "11.unfinished-0"):
        (tmp_path / "nano" / "checkpoints" / name).mkdir(parents=True)
    run, state = RunDirectory(tmp_path / "nano"), RunState()
    apply(state, started_event())
    assert _newest_checkpoint(run, run.path.stat(), state) == 10
    assert _newest_checkpoint(run, tmp_path.stat(), state) == 0
    assert _newest_checkpoint(RunDirectory(tmp_path), tmp_path.stat(), state) == 0


@pytest.mark.core
def test_switches_change_no_loss(home: Path) -> None:
    plain = train("--steps=15", WITH_DROPOUT)
    switched = train("--steps=15", "--switch=5:fsdp", "--switch=10:dp-tp2", WITH_DROPOUT)
    assert [event["step"] for event in switched if event["type"] == "StepDone"] == list(range(1, 16))
    assert losses(switched) == pytest.approx(losses(plain), rel=1e-5)
    assert losses(plain)[-1] < losses(plain)[0]
    receipts = [event for event in switched if event["type"] == "Switched"]
    assert [(r["from_preset"], r["to_preset"], r["step"], r["bytes_moved"] > 0) for r in receipts] == [
        ("dp", "fsdp", 5, False),
        ("fsdp", "dp-tp2", 10, True),
    ]
    assert all(r["digests_equal"] and r["compile_seconds"] > 0 and r["stall_seconds"] > 0 for r in receipts)
    assert [event["type"] for event in switched[-2:]] == ["EngineStopped", "RunEnded"]
    goodput = switched[-1]["goodput"]
    assert 0 < goodput["share"] < 1
    assert 0 < goodput["switching_seconds"] < goodput["wall_seconds"]
    assert [event["seq"] for event in plain] == sorted(event["seq"] for event in plain)
    for path in home.glob("state/shardtui/runs/*/events.jsonl"):
        recorded = checked_lines("events", path.read_text())
        assert {"StepsDone", "CheckpointSaved", "EngineStopped"} <= {event["type"] for event in recorded}


@pytest.mark.slow
def test_a_run_follows_its_seed_and_leaves_its_files(home: Path) -> None:
    names = ["again-1", "mine-1", "other-2"]
    again, mine, other = (losses(train("--steps=3", f"--run={name}", f"--seed={name[-1]}")) for name in names)
    assert mine == again != other
    folder = home / "state/shardtui/runs/mine-1"
    files = {"run.json", "run.toml", "events.jsonl", "engine.log", "lock"}
    assert {path.name for path in folder.iterdir()} == files | {"checkpoints"}
    listing = checked("ls", run("ls", "--json").stdout)
    runs = {listed["run"]: (listed["state"], listed["step"]) for listed in listing["runs"]}
    assert runs == dict.fromkeys(names, ("stopped", 3))
    assert "mine-1" in run("ls").stdout
    stopped = run("stop", "mine-1")
    assert (stopped.returncode, stopped.stdout) == (0, "run mine-1 has already ended\n")


@pytest.mark.slow
def test_presets_as_json(home: Path) -> None:
    listing = checked("presets", run("presets", "--json").stdout)
    assert (listing["schema"], listing["devices"]) == (1, 8)
    presets = {preset["name"]: preset for preset in listing["presets"]}
    meshes = {name: list(preset["mesh"].values()) for name, preset in presets.items()}
    assert [meshes[name] for name in ("dp", "dp-tp2", "dp-tp4", "tp")] == [[8, 1], [4, 2], [2, 4], [1, 8]]
    pipeline = {"axes": ["pipeline"], "stages": 2, "microbatches": 4, "repeats": 1, "bubble": 0.2}
    assert presets["pp2"]["pipeline"] == pipeline
    assert {name for name, preset in presets.items() if preset["pipeline"]} == {"pp2", "dp-tp2-pp2"}
    assert {name for name, preset in presets.items() if not preset["fits"]} == {*OF_EXPERTS}
    (problem,) = presets["dp-ep4"]["problems"]
    assert "this model has no experts: try --model nano-moe or --set experts=8" in problem


@pytest.mark.parametrize("command", ["train --steps=3", "compare dp tp"])
def test_an_unusable_runtime_directory_is_refused_before_anything_is_created(
    home: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    (home / "open").mkdir(mode=0o755)
    monkeypatch.setenv("SHARDTUI_RUNTIME_DIR", str(home / "open"))
    result = answered(*command.split())
    assert (result.returncode, "chmod 700" in result.stderr) == (2, True)
    assert not (home / "state").exists()


TRAIN = ["train", "--steps=3"]
TEXTS = Path(__file__).parents[1] / "hlo"
HLO = TEXTS / "tpu-psum.hlo"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["train", "--steps=-1"], "--steps -1: must be at least 1"),
        (["engine", "--run=a", "--supervise", "--wait-for-host=nan"], "--wait-for-host nan: must be at least 1"),
        (["engine", "--run=a", "--supervise", "--wait-for-host=inf"], "--wait-for-host inf: must be finite"),
        ([*TRAIN, "--restarts=2"], "--restarts 2: only for a supervised run: add --supervise"),
        (["train", "--steps=1", "--switch=5:nope"], "--switch 5:nope: preset nope: no such preset: choose from dp"),
        ([*TRAIN, "--switch=9:tp"], "--switch 9:tp: step 9 is not before the last one, 3: give --steps 10 or more"),
        ([*TRAIN, "--switch=1:tp", "--switch=1:dp"], "another switch is scheduled after that step"),
        ([*TRAIN, "--switch=tp"], "'tp' is not STEP:PRESET"),
        ([*TRAIN, "--set=layers=1\nembed=2"], "Expected `int`, got `str` at `.layers`"),
        ([*TRAIN, "--set=layers=many"], "Expected `int`, got `str` at `.layers`"),
        ([*TRAIN, "--set=attention=fast"], "'fast' at `.attention`: choose from auto, plain, splash, cudnn, ring"),
        (
            [*TRAIN, "--set=remat=some"],
            "'some' at `.remat`: choose from true, false, full, save_out_proj, save_qkv_proj",
        ),
        (
            [*TRAIN, "--set=rope={scaling='x'}"],
            "'x' at `.rope.scaling`: choose from none, linear, dynamic, llama3, yarn",
        ),
        ([*TRAIN, "--seq-len=500"], "--seq-len 500 is longer than the model's context of 128"),
        (["attach", "nope"], "run nope: no such run"),
        ([], "the UI needs a terminal"),
        (["tour"], "the UI needs a terminal"),
        (["fly"], "fly: no such command"),
        (["trian"], "did you mean train?"),
        (["resume", "nano-1"], "`shardtui --resume RUN` resumes one"),
        (["rm", "nope"], "run nope: no such run"),
        (["export", "nope", "gs://mine/out"], "gs://mine/out: a model is written to a path on this machine"),
        (["data", "prepare", __file__, "gs://mine/out"], "gs://mine/out: tokens are written to a path on this machine"),
        ([*TRAIN, "--set=lr=1"], "did you mean local_rope or learning_rate?"),
        (["train", "--stepz", "3"], "did you mean --steps?"),
        ([*TRAIN, "--preset=fsdp-tp22"], "did you mean fsdp-tp2?"),
        ([*TRAIN, "--model=gtp2"], "did you mean gpt2?"),
        (["replay", "tiny-1", "--speed=-1"], "'-1' is not a speed, such as 10"),
        (["replay", "tiny-1", "--speed=nan"], "'nan' is not a speed, such as 10"),
        ([*TRAIN, "--data=/nowhere"], "--data /nowhere: no such file or directory"),
        ([*TRAIN, "--platform=abacus"], "abacus"),
        (["inspect", "--hlo=/no/such", "--mesh=data=8"], "--hlo /no/such: cannot be read: No such file"),
        (["inspect", f"--hlo={HLO}"], "--hlo FILE and --mesh AXIS=SIZE,… belong together"),
        (["inspect", "--mesh=data=8"], "belong together"),
        (["inspect", f"--hlo={HLO}", "--mesh=data=4"], "data 4 has 4 devices, but the module was compiled for 8"),
        (["inspect", f"--hlo={HLO}", "--mesh=data"], "'data' is not AXIS=SIZE"),
        (["inspect", f"--hlo={HLO}", "--mesh=data=0"], "'data=0' is not AXIS=SIZE"),
        (["inspect", f"--hlo={HLO}", "--mesh=data=4,data=8"], "'data=4,data=8' has an axis twice"),
        (["inspect", f"--hlo={__file__}", "--mesh=data=8"], "not the text of a compiled module"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bad_input_gives_one_message_and_leaves_nothing(home: Path, arguments: list[str], says: str) -> None:
    result = answered(*arguments)
    assert result.returncode in (1, 2)
    assert says in result.stderr
    assert "Traceback" not in result.stderr
    assert result.stdout == ""
    assert list((home / "state").rglob("*.json*")) == []


@pytest.mark.parametrize(
    ("command", "says"),
    [
        (
            "train --steps=0 --preset=nope --batch-size=0 --seed=-1 --devices=0",
            ["--steps 0: ", "preset nope: no such preset", "--batch-size 0: ", "--seed -1: ", "--devices 0: "],
        ),
        ("train --steps=3 --batch-size=12 --data={home}/short", ["does not divide", "9 bytes are fewer than one sequ"]),
        (
            "compare nope tp ./tp.toml --steps=0 --batch-size=0",
            ["preset nope: no such", "/tp.toml: no such file", "--steps 0", "--batch-size 0", "has the same name"],
        ),
    ],
)
def test_all_problems_are_reported_at_once(home: Path, command: str, says: list[str]) -> None:
    (home / "short").write_text("too short")
    result = answered(*command.format(home=home).split())
    assert (result.returncode, result.stdout) == (2, "")
    assert [words for words in says if words not in result.stderr] == []
    assert list((home / "state").rglob("*.json*")) == []


def test_rename_and_rm_take_ended_runs_and_no_others(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, two = (run_directory.create(tiny_config(run=name)) for name in ("one", "two"))
    other = run_directory.create(tiny_config(run="far", checkpoints=CheckpointConfig(directory="/far")))
    with one.hold():
        assert main(["rename", "one", "new"]) == 2
    assert f"process {os.getpid()} holds its lock" in capsys.readouterr().err
    with lock.take(one.supervisor_lock):
        assert main(["rename", "one", "new"]) == main(["rm", "one"]) == 2
    assert capsys.readouterr().err.count("a supervisor keeps it training") == 2
    assert main(["rename", "one", "two"]) == main(["rename", "one", "../x"]) == main(["rename", "far", "near"]) == 2
    errors = capsys.readouterr().err
    assert all(text in errors for text in ("run two: this run already exists", "/far/far", "'../x'"))
    assert one.exists and two.exists and other.exists
    assert main(["rename", "one", "new"]) == 0
    assert run_directory.find("new").config == tiny_config(run="new")
    capsys.readouterr()
    with two.hold():
        assert main(["rm", "new", "two", "new"]) == 2
    assert {directory.name for directory in run_directory.all_runs()} == {"two", "far"}
    output = capsys.readouterr()
    assert output.out.startswith("deleted run new: ")
    assert f"run two: process {os.getpid()} holds its lock" in output.err


def inspect(*arguments: str) -> dict[str, Any]:
    result = run("inspect", "--json", *SETTINGS, *arguments)
    assert result.returncode == 0, result.stderr
    return checked("inspect-diff" if any("--diff" in text for text in arguments) else "inspect", result.stdout)


@pytest.mark.core
def test_inspect_describes_a_preset_as_json(home: Path) -> None:
    report = inspect("--preset=fsdp-tp2")
    assert report["schema"] == 3
    assert report["mesh"] == {"axes": {"fsdp": 4, "model": 2}, "device_ids": list(range(8))}
    arrays = {array["name"]: array for array in report["arrays"]}
    kinds = {array["kind"] for array in arrays.values()}
    assert kinds == {"parameter", "moment", "scalar", "batch", "gradient", "activation"}
    kernel = arrays["blocks.mlp.up.kernel"]
    assert kernel["spec"] == kernel["compiled_spec"] == [[], ["fsdp"], ["model"]]
    assert kernel["logical_axes"] == ["layers", "embed", "mlp"]
    assert (kernel["bytes"], kernel["bytes_per_device"], kernel["replicas"]) == (2 * 32 * 64 * 4, 2048, 1)
    assert kernel["shards"][1] == {"start": [0, 0, 32], "stop": [2, 8, 64], "devices": [1]}
    assert [shard["devices"] for shard in arrays["norm.scale"]["shards"]] == [[0, 1], [2, 3], [4, 5], [6, 7]]
    kinds = ("parameters", "moments", "scalars", "batch", "padding")
    assert sum(report["memory"][kind] for kind in kinds) == report["memory"]["arguments"]
    assert report["problem"] is report["origin_problem"] is None
    assert all(array["origin"] is not None for array in arrays.values())
    ends = {(link["dim"], link["axis"]): (link["kind"], link["what"]) for link in kernel["origin"]}
    assert ends[1, "fsdp"] == ("input", "argument blocks.mlp.up.kernel: rule embed → fsdp")
    assert ends[0, ""] == ("input", "argument blocks.mlp.up.kernel: layers: no rule: unsharded")
    explained = [each for each in report["collectives"] if each["origin"]]
    sent, all_sent = (sum(each["bytes_per_device"] for each in some) for some in (explained, report["collectives"]))
    assert sent > 0.8 * all_sent
    assert any("rule mlp → model" in text for each in explained for text in each["origin"])
    assert list((home / "state").glob("**/*")) == [], "no run was made"


@pytest.mark.slow
def test_inspect_compares_two_presets_and_is_for_people_or_a_picture(home: Path) -> None:
    difference = inspect("--preset=dp", "--diff=tp")
    assert (difference["preset"], difference["other"]) == ("dp", "tp")
    flows = {(flow["kind"], *flow["axes"]): flow for flow in difference["collectives"]}
    assert flows["all-reduce", "data"]["other_count"] == 0
    assert flows["all-reduce", "model"]["count"] == 0
    assert flows["all-reduce", "model"]["other_bytes_per_device"] > 0
    changed = {array["name"] for array in difference["arrays"]}
    assert "blocks.mlp.up.kernel" in changed and "norm.scale" not in changed
    picture = home / "out.svg"
    assert run("inspect", *SETTINGS, "--preset=tp", f"--svg={picture}").returncode == 0
    svg = picture.read_text()
    assert svg.startswith("<svg")
    assert "logits" in svg and "@font-face" not in svg
    result = run("inspect", *SETTINGS, "--preset=tp")
    assert "blocks.mlp.up.kernel[layers, embed, mlp@model]" in result.stdout
    assert "arguments + outputs - aliased + temporaries" in result.stdout
    refused = run("inspect", *SETTINGS, "--preset=tp", f"--svg={home}/no/such/folder.svg")
    assert (refused.returncode, "cannot be written: No such file" in refused.stderr) == (2, True)


def test_inspect_reads_the_text_of_any_compiled_program(tmp_path: Path) -> None:
    text = TEXTS / "tpu-psum-in-two-loops.hlo"
    result = run("inspect", f"--hlo={text}", "--mesh=data=4,model=2", "--json")
    (collective,) = checked("inspect-hlo", result.stdout)["collectives"]
    assert (collective["kind"], collective["axes"], collective["count"]) == ("all-reduce", ["data"], 15)
    assert "collective_programs.py" in run("inspect", f"--hlo={text}", "--mesh=data=4,model=2").stdout
    narrow = run("inspect", f"--hlo={text}", "--mesh=data=4,model=2", COLUMNS="60").stdout
    assert max(map(len, narrow.splitlines())) == 60


@pytest.mark.slow
def test_lint_exits_by_what_it_finds(home: Path) -> None:
    """On nano itself: a smaller model has too little to compute for its traffic."""
    good = run("lint", "--preset=dp", "--json")
    assert (good.returncode, checked("lint", good.stdout)["findings"]) == (0, [])
    bad = run("lint", "--preset=pitfall-same-axis", "--json")
    assert bad.returncode == 1
    found = {finding["code"]: finding["origin"] for finding in checked("lint", bad.stdout)["findings"]}
    assert found.keys() == {"S104", "S105"}
    assert all(any("rule batch → model" in end for end in origin) for origin in found.values())
    told = run("lint", "--preset=pitfall-same-axis", *SETTINGS)
    assert (told.returncode, "S105" in told.stdout, "idle-axis" in told.stdout) == (1, True, True)


def test_an_optional_argument_may_stand_after_options() -> None:
    arguments = ["explain", "network.py:program", "--mesh", "data=4,model=2", "hidden"]
    assert _parser("explain").parse_args(arguments).name == "hidden"
    with pytest.raises(SystemExit):
        _parser("explain").parse_args([*arguments, "more"])


def test_the_summary_of_a_resumed_run_has_the_presets_of_its_earlier_engines(
    capsys: pytest.CaptureFixture[str],
) -> None:
    presets = [preset_info("dp"), preset_info("tp", mesh={"model": 8})]
    begin, end = (started_event(), msgspec.structs.replace(READY, presets=presets)), wire.EngineStopped(2, "finished")
    state = RunState()
    apply_all(state, [*begin, wire.TrainingStarted("dp"), steps(2, 3.0, 2.0), end])
    apply_all(state, [*begin, restored(2), wire.TrainingStarted("tp", 2), steps(4, 2.0, 1.0), end])
    _print_summary(state)
    printed = capsys.readouterr().out
    assert [" ".join(line.split()[:3]) for line in printed.splitlines()[4:6]] == ["dp data 8", "tp model 8"], printed
