"""`shardtui explain` and `shardtui why` as a user has them."""

from importlib.util import find_spec
from pathlib import Path

import pytest
from msgspec.structs import replace
from shardtui.engine.explain.explanation import CollectiveOrigin, Explanation, Link, ValueOrigin
from shardtui.tui.state.explanation_diff import changes

from ..conftest import SETTINGS
from ..schemas import checked
from .test_cli import run

PROGRAM = """
import jax
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import NamedSharding, PartitionSpec as P

SPEC = P(None, "model")

def loss(w, x):
    hidden = checkpoint_name(x @ w, "hidden")
    return (hidden @ w.T).sum()

def arguments():
    mesh = jax.sharding.get_mesh()
    w = jax.ShapeDtypeStruct((16, 32), "float32", sharding=NamedSharding(mesh, SPEC))
    return w, jax.ShapeDtypeStruct((8, 16), "float32", sharding=NamedSharding(mesh, P("data")))

def lowered():
    return jax.jit(jax.grad(loss)).lower(*arguments())

def traced():
    return jax.jit(jax.grad(loss)).trace(*arguments())

def pair():
    return jax.jit(jax.grad(loss)), arguments()

def number():
    return 3

def wrong_shapes():
    return jax.jit(lambda x: x @ x).lower(jax.ShapeDtypeStruct((8, 16), "float32"))

def elsewhere():
    mesh = jax.make_mesh((4, 2), ("a", "b"))
    x = jax.ShapeDtypeStruct((8, 8), "float32", sharding=NamedSharding(mesh, P("a")))
    return jax.jit(lambda x: x.T + 1).lower(x)

def needs(mesh):
    return None

def step():
    w, x = arguments()
    gradient = jax.grad(lambda w, x: ((x @ w) ** 2).sum())
    return jax.jit(lambda w, x: (w - gradient(w, x), x * 2), donate_argnums=0), (w, x)

def own_mesh():
    split = NamedSharding(jax.make_mesh((8,), ("all",), axis_types=(jax.sharding.AxisType.Auto,)), P("all"))
    x = jax.ShapeDtypeStruct((1024, 8192), "float32", sharding=split)
    return jax.jit(lambda x: x @ x.T, out_shardings=split), (x,)

def kernel():
    from jax.experimental import pallas as pl
    jitted, (x,) = own_mesh()
    def double(given, made):
        made[...] = given[...] * 2
    call = pl.pallas_call(double, out_shape=jax.ShapeDtypeStruct((128, 8192), "float32"))
    doubled = jax.shard_map(call, mesh=x.sharding.mesh, in_specs=P("all"), out_specs=P("all"), check_vma=False)
    return jax.jit(lambda x: jitted(doubled(x))), (x,)
"""
MESH = "--mesh=data=4,model=2"


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    return path


def test_lowered_traced_and_a_pair_are_explained_alike(program: Path, home: Path) -> None:
    names = ["lowered", "traced", "pair"]
    answers = [run("explain", f"{program}:{name}", MESH, "--json").stdout for name in names]
    found, *others = (checked("explain", answer) for answer in answers)
    assert [each.pop("program") for each in (found, *others)] == [f"program.py:{name}" for name in names]
    assert others == [found, found]
    assert found["mesh"] == {"data": 4, "model": 2}
    hidden = next(value for value in found["values"] if value["name"] == "hidden")
    assert (hidden["axes"], hidden["source"]) == ([["data"], ["model"]], f"{program}:9")
    *_, end = (link for link in hidden["origin"] if link["axis"] == "model")
    assert (end["kind"], end["what"]) == ("input", "argument w")
    assert {each["kind"] for each in found["collectives"]} == {"all-reduce"}
    assert found["compiled"] is None


def test_a_saved_explanation_shows_what_changed(program: Path, home: Path) -> None:
    saved = program.with_suffix(".json")
    assert run("explain", f"{program}:pair", MESH, f"--save={saved}").returncode == 0
    program.write_text(f"# a line more\n{PROGRAM}")
    same = run("explain", f"{program}:pair", MESH, f"--diff={saved}")
    assert (same.returncode, same.stdout) == (0, "no change\n")
    program.write_text(PROGRAM.replace('SPEC = P(None, "model")', "SPEC = P()"))
    result = run("explain", f"{program}:pair", MESH, f"--diff={saved}", "--json")
    assert result.returncode == 1
    lines = checked("explain-diff", result.stdout)["changes"]
    assert "w: 16 × 32 f32 (–, model) → 16 × 32 f32 (–, –)" in lines
    assert any(line.startswith("hidden: 8 × 32 f32 (data, model) → 8 × 32 f32 (data, –)") for line in lines)


def test_the_report_shows_values_collectives_and_the_compiled_program(program: Path, home: Path) -> None:
    report = run("explain", f"{program}:pair", MESH, "--compile", COLUMNS="100").stdout
    assert "program.py:pair: data 4 × model 2\nan estimate by Shardy's passes" in report
    assert "collectives, estimated" in report and "estimated and compiled collectives, per device" in report
    chain = run("explain", f"{program}:pair", "hidden", MESH).stdout
    assert "hidden 8 × 32 f32 (data, model)  program.py:9" in chain
    assert "  dim 1: over model\n    ← operand 1 of the product, w (program.py:9)\n    ← argument w" in chain


def test_a_program_costs_what_follows_from_its_code(program: Path, home: Path) -> None:
    found = checked("explain", run("explain", f"{program}:step", MESH, "--topology=v5e:2x4", "--json").stdout)
    cost, w, x = found["cost"], 16 * 16 * 4, 2 * 16 * 4
    assert (found["topology"], cost["basis"], cost["argument_bytes"]) == ("v5e:2x4", "traced", w + x)
    sent = {(each["kind"], *each["axes"]): each["bytes_sent"] for each in cost["collectives"]}
    assert sent == {("all-reduce", "data"): 2 * w * 3 // 4}
    assert cost["at_peak"]["bytes"] == sum(each["bytes"] for each in cost["peak_buffers"]) > w + x
    assert cost["step_seconds"] > 0 and cost["tokens_per_second"] is None
    assert found["compiled"] is None
    report = run("explain", f"{program}:step", MESH, "--topology=v5e:2x4").stdout
    assert "on v5e:2x4, per device, predicted" in report and "largest buffers at the peak, predicted" in report
    assert "over 3 to 32 devices the TPU compiler multiplies while it gathers" in report


@pytest.mark.slow
@pytest.mark.skipif(find_spec("libtpu") is None, reason="needs the extra tpu; `.ci/run` has it")
@pytest.mark.parametrize("name", ["own_mesh", "kernel"])
def test_a_program_with_a_mesh_of_its_own_is_compiled_for_tpus(program: Path, home: Path, name: str) -> None:
    found = checked("explain", run("explain", f"{program}:{name}", "--topology=v5e:2x4", "--compile", "--json").stdout)
    traced, compiled = found["cost"], found["compiled"]["cost"]
    assert (compiled["basis"], compiled["argument_bytes"]) == ("compiled", traced["argument_bytes"])
    assert compiled["bytes_sent"] == traced["bytes_sent"] > 0
    assert compiled["scheduled_seconds"] > 0 and compiled["breakdown"]["parts"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["{program}:SPEC"], "SPEC of program.py is P"),
        (["{program}:number"], "program.py:number: it returns int: return what jax.jit(f).lower(…) or .trace(…) gives"),
        (["{program}:wrong_shapes"], "explain program.py:wrong_shapes: TypeError: dot_general"),
        (["{program}:elsewhere"], "it has a mesh of its own, other than --mesh data=4,model=2: leave --mesh out"),
        (["{program}:needs"], "program.py:needs: it takes mesh, but is called without arguments"),
        (["{program}:pair", "--topology=v9:2x4"], "--topology v9:2x4: "),
        (
            ["{program}:pair", "--topology=v5e:4x4"],
            "v5e:4x4 has 16 devices, but the mesh data 4 × model 2 has 8: give a mesh and a --topology of one size",
        ),
        (["absent.py:f"], "explain absent.py:f: there is no file"),
        (["{program}:pair", "--diff=absent.json"], "--diff absent.json: cannot be read: No such file or directory"),
        (["{program}:pair", "hidden", "--diff=absent.json"], "hidden: --diff compares all of a program"),
        (["{program}:pair", "--diff={program}"], "not what `shardtui explain … --save` wrote"),
        (["{program}:pair", "--save=/nowhere/x"], "--save /nowhere/x: cannot be written: No such file"),
        (["{program}:pair", "hiden"], "hiden: no value and no source line of program.py:pair has this"),
    ],
)
def test_wrong_arguments_are_one_message(program: Path, home: Path, arguments: list[str], message: str) -> None:
    result = run("explain", MESH, *(each.format(program=program) for each in arguments))
    assert result.returncode == 2
    assert "Traceback" not in result.stderr
    assert message.format(program=program) in result.stderr


def test_why_ends_at_the_rule_and_tries_another(home: Path) -> None:
    report = checked("why", run("why", "mlp.hidden", "--preset=fsdp-tp2", "--try=mlp=", "--json", *SETTINGS).stdout)
    (hidden,) = [value for value in report["values"] if value["name"] == "blocks.mlp.hidden"]
    (end,) = [link for link in hidden["origin"] if link["axis"] == "model"]
    assert end["what"].endswith("rule mlp → model")
    assert report["tried"] == {"mlp": []}
    assert any(line.startswith("blocks.mlp.hidden: ") and "(fsdp, –, –)" in line for line in report["changes"])
    refused = run("why", "mlp", "--preset=fsdp-tp2", "--try=mlp=nowhere", *SETTINGS)
    assert (refused.returncode, "nowhere" in refused.stderr, "Traceback" in refused.stderr) == (2, True, False)


def test_changes_are_in_words() -> None:
    link = Link(dim=0, axis="data", kind="input", what="argument x", source="")
    value = ValueOrigin(name="x", shape=[8], dtype="f32", axes=[["data"]], role="value", source="a.py:1", origin=[link])
    unsplit = replace(value, axes=[[]], origin=[])
    why = ["the sum at a.py:2"]
    sent = CollectiveOrigin(kind="all-reduce", axes=["data"], count=2, bytes=80, source="a.py:2", because=why)
    before = Explanation(program="p", mesh={"data": 4}, values=[value], collectives=[sent])
    moved = replace(sent, source="a.py:9", because=["the sum at a.py:9"])
    assert changes(before, replace(before, collectives=[moved])) == []
    more = replace(sent, count=3, bytes=120)
    assert changes(before, replace(before, mesh={"data": 2}, values=[value, unsplit], collectives=[more])) == [
        "mesh: data 4 → data 2",
        "x #2: new, 8 f32 (–)",
        "all-reduce over data: 2 × in 80 B → 3 × in 120 B (the sum at a.py)",
    ]
