"""Programs that know nothing of shardtui, under `shardtui watch`."""

import copy
import functools
import os
import re
import signal
import subprocess
import sys
import traceback
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from shardtui.engine.spec.watch_request import STARTUP, WatchRequest, environment, take_request
from shardtui.engine.watching.jitted import Calls, Jitted, _also_as_decorator, replace_jit
from shardtui.engine.watching.program import Program
from shardtui.engine.watching.reporter import ProgramOutput
from shardtui.engine.wire import events as wire
from shardtui.engine.wire.run_directory import all_runs, find
from shardtui.tui.state.interpreter import apply_all
from shardtui.tui.state.run_state import RunState
from shardtui.tui.widgets.curve_list import CurveList
from textual import on
from textual.app import App
from textual.widget import Widget
from textual.widgets import OptionList

from ..distributed.test_hosts import free_port
from ..recorded import events_in, steps
from ..schemas import checked_lines
from ..terminal import Terminal
from ..tui.test_app import until

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.usefixtures("home")
PROGRAM = "tests.watching.programs.entry"
WATCH = ("-m", "shardtui.tui", "watch")


def run_program(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=300)


def test_a_program_runs_as_without_and_its_run_shows_what_it_has() -> None:
    plain = run_program("-m", PROGRAM, "--lr", "1")
    watched = run_program(*WATCH, "--run", "unmodified", "-m", PROGRAM, "--lr", "1")
    said = "shardtui: watching as unmodified: shardtui attach unmodified\n"
    assert watched.stdout == plain.stdout
    assert "has jax: False, batch 5" in plain.stdout
    assert said in watched.stderr
    assert watched.stderr.replace(said, "") == plain.stderr
    assert "TypeError: dot_general" in plain.stderr
    assert watched.returncode == plain.returncode == 1

    checked_lines("events", find("unmodified").events.read_text())
    events = list(events_in(find("unmodified").events))
    state = RunState()
    apply_all(state, events)
    losses, norms = zip(*(map(float.fromhex, line.split()) for line in plain.stdout.splitlines()[:6]), strict=True)
    assert list(state.losses) == pytest.approx(losses, rel=1e-8)
    assert {*state.curves} == {"learning/grad_norm", "evaluate"}
    assert state.curves["learning/grad_norm"] == pytest.approx(norms, rel=1e-8)
    assert state.layout and state.layout.mesh.axes == {"data": 4, "model": 2}
    kinds = {array.name: (array.kind, array.compiled_spec) for array in state.layout.arrays}
    assert kinds == {
        "count": ("scalar", []),
        **{f"{moment}up": (kind, [[], ["model"]]) for moment, kind in MOMENTS.items()},
        **{f"{moment}down": (kind, [["model"], []]) for moment, kind in MOMENTS.items()},
        "batch.inputs": ("batch", [["data"], []]),
    }
    assert ("all-reduce", ["data"]) in [(each.kind, each.axes) for each in state.layout.collectives or ()]
    found = [event for event in events if isinstance(event, wire.StepFound)][-1]
    assert (found.step.name, found.step.calls) == ("Trainer.train_step", 6)
    assert ("evaluate", 6) in [(each.name, each.calls) for each in found.others]
    assert any("TypeError" in problem and "entry.py" in problem for problem in state.problems)


@pytest.mark.parametrize("own", ["", "one", f"one{os.pathsep}two", "caf\udcff"])
def test_a_program_has_its_own_path(monkeypatch: pytest.MonkeyPatch, own: str) -> None:
    monkeypatch.setenv("PYTHONPATH", own)
    monkeypatch.setattr(sys, "path", [str(STARTUP), *sys.path])
    request, before = WatchRequest(run="mine"), sys.path[1:]
    for name, value in environment(request).items():
        monkeypatch.setenv(name, value)
    assert os.environ["PYTHONPATH"] == os.pathsep.join(filter(None, [str(STARTUP), own]))
    assert take_request() == request
    assert (os.environ.get("PYTHONPATH", ""), sys.path) == (own, before)


MOMENTS = {"": "parameter", "mu.": "moment", "nu.": "moment"}


ENDING = """
import sys, jax, jax.numpy as jnp
step, state = jax.jit(lambda state: (state + 1, state.sum())), jnp.zeros(10)
for _ in range(4):
    state, loss = step(state)
try:
    sys.exit(5)
except SystemExit as error:
    import traceback
    assert len(traceback.extract_tb(error.__traceback__)) == 1
"""


@pytest.mark.parametrize(
    ("ending", "status", "event"),
    [
        ("", 0, wire.EngineStopped(step=4, reason="finished")),
        pytest.param(
            "sys.exit(3)", 3, wire.Failed(problems=["exited with status 3"], refused=False), marks=pytest.mark.core
        ),
        ("sys.exit('no data')", 1, wire.Failed(problems=["exited with status 1: no data"], refused=False)),
    ],
)
def test_a_run_ends_as_its_program_exits(tmp_path: Path, ending: str, status: int, event: wire.Event) -> None:
    (tmp_path / "script.py").write_text(ENDING + ending)
    assert run_program(*WATCH, "--run", "ending", str(tmp_path / "script.py")).returncode == status
    *_, last = events_in(find("ending").events)
    assert (type(last), last.line) == (type(event), event.line)


WITHOUT_STEP = "import jax\nfor _ in range(4): y = jax.jit(lambda x: x + 1)(1.0)\nraise SystemExit(7)\n"
WITHOUT_JAX = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'pass'], check=True)"


@pytest.mark.parametrize(
    ("arguments", "script", "code", "says"),
    [
        ((), None, 2, "no program: give what follows `python`"),
        (("--run", "No!", "x.py"), None, 2, "a name has 1 to 64 characters"),
        (("/nothing/here.py",), None, 2, "No such file or directory"),
        (
            ("--step", "lambd"),
            WITHOUT_STEP,
            7,
            r"--step lambd: no jitted function of this name takes its own results: did you mean <lambda>\?"
            r"(.|\n)*<lambda> \(4 calls",
        ),
        ((), WITHOUT_JAX, 0, r"\A.*the program never imported jax: nothing to watch.*\n\Z"),
    ],
)
def test_what_cannot_be_watched_says_why(
    tmp_path: Path, arguments: tuple[str, ...], script: str | None, code: int, says: str
) -> None:
    if script:
        (tmp_path / "script.py").write_text(script)
        arguments = (*arguments, str(tmp_path / "script.py"))
    ended = run_program(*WATCH, *arguments)
    assert ended.returncode == code
    assert re.search(says, ended.stderr), ended.stderr


DISTRIBUTED = """
import os, sys
os.environ["JAX_NUM_CPU_DEVICES"], os.environ["JAX_PLATFORMS"] = "2", "cpu"
import jax, jax.numpy as jnp
jax.distributed.initialize(f"127.0.0.1:{sys.argv[1]}", 2, int(sys.argv[2]))
mesh = jax.make_mesh((4,), ("data",))
split = jax.NamedSharding(mesh, jax.P("data"))
state = jax.jit(lambda: jnp.zeros(8), out_shardings=split)()
step = jax.jit(lambda state: (state + 1, state.sum()), out_shardings=(split, jax.NamedSharding(mesh, jax.P())))
def train(report):
    global state
    for _ in range(5):
        state, loss = step(state)
        report(loss)
        print(float(loss))
"""
WITHOUT_CALLS = DISTRIBUTED + "train(lambda loss: None)"
WITH_CALLS = f"""{DISTRIBUTED}
from shardtui.engine.watch import watch
with watch("both", state=state, step=step, args=(state,)) as run:
    train(run.step)
assert run.name == (None if jax.process_index() else "both")
"""


@pytest.mark.core
@pytest.mark.parametrize(
    ("command", "program", "is_said"),
    [((*WATCH, "--run", "both"), WITHOUT_CALLS, True), ((), WITH_CALLS, False)],
    ids=["unmodified", "with calls"],
)
def test_of_two_processes_one_reports(tmp_path: Path, command: tuple[str, ...], program: str, is_said: bool) -> None:
    script = tmp_path / "script.py"
    script.write_text(program)
    started = [sys.executable, *command, str(script), str(free_port())]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    processes = [subprocess.Popen([*started, rank], cwd=ROOT, **pipes) for rank in "01"]
    (printed, said), (other, quiet) = [process.communicate(timeout=300) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], said + quiet
    losses, others = (re.findall(r"^\d+\.\d$", text, re.MULTILINE) for text in (printed, other))  # gloo prints, too
    assert losses == others
    assert ("watching as both" in said, "shardtui: " in quiet) == (is_said, False)
    assert [run.name for run in all_runs()] == ["both"]
    state = RunState()
    apply_all(state, events_in(find("both").events))
    assert list(state.losses) == [float(line) for line in losses] == [0.0, 8.0, 16.0, 24.0, 32.0]
    assert state.layout and state.layout.mesh.axes == {"data": 4}
    assert state.ready and [device.process for device in state.ready.devices] == [0, 0, 1, 1]


def watching(function: Any, calls: Calls | None = None) -> Jitted:
    return Jitted(function, calls or Calls("f", lambda *_: None))


def test_a_stand_in_is_taken_for_the_function() -> None:
    @functools.partial(jax.jit, static_argnames="n")
    def double(x: Any, *, n: int = 2) -> Any:
        """Doubles."""
        return n * x

    stand_in = watching(double)
    assert isinstance(stand_in, type(double)) and isinstance(stand_in, jax.stages.Wrapped)
    assert (stand_in.__name__, stand_in.__doc__, repr(stand_in)) == ("double", "Doubles.", repr(double))
    assert stand_in.__wrapped__ is double.__wrapped__
    assert stand_in(3.0, n=3) == 9.0
    assert stand_in.lower(1.0).compile()(1.0) == 2.0
    assert jax.grad(stand_in)(1.0) == 2.0 and jax.vmap(stand_in)(jnp.ones(3)).shape == (3,)
    assert jax.export.export(stand_in)(1.0).out_avals[0].shape == ()
    assert jax.jit(stand_in)(1.0) == 2.0
    assert copy.deepcopy(stand_in)(1.0) == 2.0

    class Model:
        scale = 4
        method = watching(jax.jit(lambda self, x: x * 2, static_argnums=0))

    assert Model().method(2.0) == 4.0
    try:
        watching(jax.jit(lambda x: 1 // 0))(1.0)
    except ZeroDivisionError as error:
        assert "jitted.py" not in "".join(traceback.format_exception(error))


@pytest.mark.parametrize("arguments", [(5,), (len,)])
def test_neither_jit_nor_what_it_makes_is_in_a_traceback(arguments: tuple[Any, ...]) -> None:
    jit = _also_as_decorator(jax.jit, watching)
    for call in (lambda: jit(*arguments)(1), lambda: jit(static_argnums=0)(*arguments)(1)):
        with pytest.raises(TypeError) as raised:
            call()
        assert "jitted.py" not in "".join(traceback.format_exception(raised.value))


def test_a_program_goes_on_where_a_function_cannot_be_watched(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for owner, name in ((jax, "jit"), (jax, "pmap"), (jax.stages.Compiled, "__call__")):
        monkeypatch.setattr(owner, name, getattr(owner, name))
    replace_jit(lambda function: 1 // 0)
    assert jax.jit(lambda x: x + 1)(1) == 2
    assert jax.jit(lambda x: x + 1).lower(1).compile()(1) == 2
    assert "is not watched" in caplog.text


class Curves(App[None]):
    chosen = ""

    def compose(self) -> Iterable[Widget]:
        yield CurveList()

    @on(OptionList.OptionHighlighted)
    def choose(self, event: OptionList.OptionHighlighted) -> None:
        self.chosen = event.option.id or ""


async def test_the_cursor_stays_on_its_curve() -> None:
    state = RunState()
    async with Curves().run_test(size=(60, 10)) as pilot:
        curves = pilot.app.query_one(CurveList)
        curves.focus()
        apply_all(state, [steps(1, 1.0, metrics={"train/norm": [0.5], "train/rate": [0.1]})])
        curves.show_state(state)
        await pilot.press("down", "down")
        apply_all(state, [steps(2, 1.0, metrics={"train/norm": [0.25], "train/rate": [0.1], "train/speed": [3.0]})])
        curves.show_state(state)
        await until(lambda: pilot.app.chosen == "train/rate" == curves.highlighted_option.id, "the curve of the cursor")
        narrow = curves.shown["train/rate"].cell_length
        await pilot.resize_terminal(90, 10)
        await until(lambda: curves.shown["train/rate"].cell_length == narrow + 30, "wider rows")
        rows = [" ".join(row.plain.split()[:2]) for row in curves.shown.values()]
        assert rows == ["loss 1", "norm 0.25", "rate 0.1", "speed 3"]
        apply_all(state, [steps(3, 1.0, metrics={"/norm": [0.5]})])
        curves.show_state(state)
        assert [row.plain.split()[0] for row in curves.shown.values()] == ["loss", *state.curves]


def called(program: Program, body: Any, state: Any, count: int, *more: Any) -> Any:
    function = Jitted(jitted := jax.jit(body), program._calls_of(jitted))
    for _ in range(count):
        state = function(state, *more)[0]
    return state


def test_the_step_is_the_largest_function_that_takes_its_own_results() -> None:
    """An evaluation that adds up takes its own results, too; a second training later takes the step's place."""
    program = Program(WatchRequest(run="chosen"))

    def pretrain(state: Any) -> Any:
        return state + 1, {"loss": jnp.mean(state)}

    def evaluate(total: Any, state: Any) -> Any:
        return total + jnp.mean(state), jnp.mean(state)

    def finetune(state: Any, x: Any) -> Any:
        return state + x, jnp.mean(state)

    total = called(program, evaluate, jnp.zeros(()), 5, jnp.ones(100))
    state = called(program, pretrain, jnp.zeros(100), 9)
    called(program, evaluate, total, 20, state)
    called(program, finetune, state[:50], 9, 1.0)
    program._end()
    events = list(events_in(find("chosen").events))
    names = [event.step.name.rpartition(".")[2] for event in events if isinstance(event, wire.StepFound)]
    assert names == ["evaluate", "pretrain", "finetune", "finetune"]
    assert [run.name for run in all_runs()].count("chosen") == 1


def test_output_comes_in_lines_and_the_last_of_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shardtui.engine.watching.reporter.OUTPUT_SECONDS", 0.0)
    (tmp_path / "printed").touch()
    with (tmp_path / "printed").open("ab", buffering=0) as printing:
        output = ProgramOutput(tmp_path / "printed", tmp_path / "engine.log")
        assert output.read() is None
        printing.write(b"one\ntwo")
        assert output.read() == wire.Printed(lines=["one"], left_out=0)
        printing.write(b"\n" + b"x" * 600 + b"\n" + b"y\xff\n" * 40)
        assert output.read() == wire.Printed(lines=["y\ufffd"] * 20, left_out=22)
        for percent in range(101):
            printing.write(b"\r%d %%" % percent)
            assert output.read() is None
        printing.write(b"\nof Windows\r\n")
        assert output.read() == wire.Printed(lines=["100 %", "of Windows"], left_out=0)
        printing.write(b"end")
        assert output.read() is None
        assert output.read(is_end=True) == wire.Printed(lines=["end"], left_out=0)


@pytest.mark.slow
def test_the_ui_shows_what_the_program_prints_and_leaves_it_running(home: Path) -> None:
    script = home / "loop.py"
    script.write_text(LOOP)
    terminal = Terminal("watch", "--ui", "--run=ui", str(script))
    terminal.until(lambda text: "curves" in text, "the UI")
    terminal.press("0", "step 3 of loop.py")
    terminal.send("d")
    assert terminal.exit_code() == 0
    holder = find("ui").holder()
    assert holder and holder.is_alive, "without the UI"
    os.kill(holder.pid, signal.SIGTERM)


LOOP = """
import sys, time, jax, jax.numpy as jnp
state = jnp.zeros(10)
step = jax.jit(lambda state: (state + 1, state.sum()))
for number in range(100_000):
    state, loss = step(state)
    if number < 5:
        print("step", number, "of", sys.argv[0].rpartition("/")[2])
    time.sleep(0.05)
"""
