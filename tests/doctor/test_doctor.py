"""`doctor` finds each planted fault and names it, and finds nothing on simulated devices without one."""

import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import pytest
from shardtui.engine.doctor import devices as device_checks
from shardtui.engine.doctor import examine, kernels
from shardtui.engine.models import attention_kernels, blocks
from shardtui.engine.spec.topology import load_topology
from shardtui.engine.wire.checkup import Check, Examination, examined
from shardtui.tui.cli import doctor
from shardtui.tui.cli.main import main

from ..conftest import SHARDTUI
from ..flips import Flip, flipped


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("XDG_STATE_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.setenv(name, str(tmp_path / name))
    return tmp_path / "XDG_STATE_HOME"


def one_percent_more(function: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    return lambda *arguments, **options: function(*arguments, **options) * 1.01


@pytest.mark.parametrize(
    "dtype", [pytest.param("float32", marks=pytest.mark.core), pytest.param("bfloat16", marks=pytest.mark.slow)]
)
def test_an_experts_kernel_that_is_one_percent_off_is_named(monkeypatch: pytest.MonkeyPatch, dtype: str) -> None:
    """Also in bfloat16, whose rounding alone is as large."""
    monkeypatch.setattr(kernels, "DTYPES", (dtype,))
    monkeypatch.setattr(blocks, "ragged_experts", one_percent_more(blocks.ragged_experts))
    found = kernels.check_experts(jax.devices())
    assert found.verdict == "broken"
    assert found.found.startswith(f"ragged {dtype} differs by ")
    assert re.search(r"\+(1\.0|0\.7)\d% in scale", found.found), "1.01 is 1.0078 in bfloat16"
    assert "capacity" not in found.found


@pytest.mark.core
def test_an_attention_kernel_that_is_one_percent_off_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "DTYPES", ("bfloat16",))
    monkeypatch.setattr(attention_kernels, "_splash", one_percent_more(attention_kernels._splash))
    found = kernels.check_attention(jax.devices())
    assert found.verdict == "broken"
    assert found.found.startswith("splash-interpreted bfloat16 differs by ")
    assert "ring" not in found.found
    assert "ring bfloat16: largest difference" in found.numbers


def test_one_device_has_no_ring(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "DTYPES", ("float32",))
    found = kernels.check_attention(jax.devices()[:1])
    assert (found.verdict, list(found.numbers)) == ("ok", ["splash-interpreted float32: largest difference"])


@pytest.mark.parametrize("dtype", ["bfloat16", "bool"])
def test_a_device_that_flips_a_bit_is_named(monkeypatch: pytest.MonkeyPatch, dtype: str) -> None:
    place, device_put = device_checks.DTYPES.index(dtype), jax.device_put

    def held(arrays: Any, to: Any) -> Any:
        placed = device_put(arrays, to)
        on_all = isinstance(to, list) and len(to[0].device_set) > 1
        return flipped(placed, Flip(place, 5, 777, 0)) if on_all else placed

    assert device_checks.check_digests(jax.devices()).verdict == "ok"
    monkeypatch.setattr(jax, "device_put", held)
    found = device_checks.check_digests(jax.devices())
    assert (found.verdict, found.found) == ("broken", f"digests differ from the host's on device 5: {dtype}")


def test_links_that_are_slower_than_expected_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    good, bad = ({"x": 9e10, "y": rate} for rate in (9e10, 9e9))
    assert device_checks.judged(good, {"x": 1e11, "y": 1e11}).verdict == "ok"
    found = device_checks.judged(bad, {"x": 1e11, "y": 1e11})
    assert found.verdict == "warning"
    assert "y 9 GB/s, 9% of 100 GB/s: not as expected over y" in found.found
    found = device_checks.check_rates(jax.devices())
    assert (found.verdict, list(found.numbers)) == ("ok", ["bytes sent per second over all"])
    assert found.numbers["bytes sent per second over all"] > 1e6
    monkeypatch.setattr(device_checks, "topology_of", lambda _: load_topology("v5e:2x4"))
    found = device_checks.check_rates(jax.devices())
    assert found.verdict == "warning", "simulated devices are far slower than the links of a TPU"
    assert found.found.endswith("not as expected over x, y")


@pytest.mark.parametrize(
    ("kind", "coords", "says"),
    [
        ("TPU v5 lite", [(0, 0, 0), (0, 1, 0), (1, 0, 0), (1, 1, 0)], "fill v5e:2x2"),
        ("TPU v5 lite", [(0, 0, 0), (1, 1, 0)], "do not fill a slice"),
        ("TPU v99", [(0, 0, 0)], "TPU v99 is not in the tables"),
    ],
)
def test_a_slice_with_gaps_and_a_kind_without_a_table_are_told_apart(
    kind: str, coords: list[tuple[int, ...]], says: str
) -> None:
    about: dict[str, Any] = {"platform": "tpu", "process_index": 0, "slice_index": 0, "device_kind": kind}
    devices: Any = [SimpleNamespace(coords=each, **about) for each in coords]
    assert says in device_checks.check_topology(devices).found


def test_packages_that_do_not_fit_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert examine.check_packages().verdict == "ok"
    real = examine.distribution

    def old(name: str) -> Any:
        if name == "grain":
            raise examine.PackageNotFoundError
        return SimpleNamespace(version="0.1", requires=real(name).requires) if name == "flax" else real(name)

    monkeypatch.setattr(examine, "distribution", old)
    found = examine.check_packages()
    assert found.verdict == "broken"
    assert "shardtui needs grain, which is not installed" in found.found
    assert "shardtui needs flax<0.13,>=0.12.8, but 0.1 is installed" in found.found


def test_who_holds_an_accelerator_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "accel0").touch()
    monkeypatch.setattr(examine, "DEV", tmp_path)
    assert "opened by no process" in examine.check_holders().found
    command = [sys.executable, "-c", f"file = open({str(tmp_path / 'accel0')!r}); print(flush=True); input()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout
        holder.stdout.readline()
        found = examine.check_holders()
        assert (found.verdict, f"opened by process {holder.pid} (python" in found.found) == ("warning", True)
        holder.communicate(b"\n")


def test_a_full_disk_is_named() -> None:
    command = ["sh", "-c", 'ulimit -f 64; exec "$@"', "sh", *SHARDTUI, "doctor"]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (run.returncode, run.stderr) == (1, "")
    (disk,) = [line for line in run.stdout.splitlines() if " disk " in line]
    assert disk.startswith("broken") and "the disk is full (File too large)" in disk
    assert "10 ok, 0 warnings, 1 broken. Report, without names: " in run.stdout


def test_a_compilation_cache_in_a_bucket_is_named_and_no_directory_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", "gs://bucket/cache")
    assert examine.check_caches() == Check(found="compiled programs in gs://bucket/cache")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("ends", "why"),
    [
        ("import os; os.abort()", "its process was ended by SIGABRT: no message"),
        ("import sys; sys.exit('libtpu.so: the TPU is already in use by process with pid 7')", "(already in use by"),
        ("import time; time.sleep(60)", "no answer in 1 s"),
    ],
)
def test_a_process_that_ends_or_hangs_in_a_check_breaks_that_one(
    monkeypatch: pytest.MonkeyPatch, ends: str, why: str
) -> None:
    """On a real accelerator, jax itself may abort or wait forever."""
    line = json.dumps({"name": "devices", "verdict": "running"})
    monkeypatch.setattr(
        doctor, "engine_command", lambda *_: [sys.executable, "-c", f"print({line!r}, flush=True); {ends}"]
    )
    monkeypatch.setattr(doctor, "LONGEST_SECONDS", 1.0)
    first, last = doctor._of_engine(Examination())
    assert (first.verdict, last.name, last.verdict) == ("running", "devices", "broken")
    assert why in last.found
    assert "run it on each at once" in last.advice


def test_an_error_of_any_kind_breaks_its_check_and_no_other() -> None:
    def fail() -> Check:
        raise KeyError("spec")

    _, found = examined("presets", fail)
    assert (found.name, found.verdict, found.found) == ("presets", "broken", "KeyError: 'spec'")


def test_the_report_has_no_names_and_compares_with_another(
    state: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    home = state.parent / "jane-doe"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("XDG_STATE_HOME", str(home / "state"))
    assert main(["doctor"]) == 0
    report = home / "state" / "shardtui" / "doctor.json"
    kept = report.with_name("earlier.json")
    text = report.read_text()
    assert socket.gethostname() not in text
    assert "jane-doe" not in text
    assert "~/.cache/shardtui/jax" in text
    earlier = json.loads(text)
    for check in earlier["checks"]:
        check["numbers"] = {name: 2 * number for name, number in check["numbers"].items()}
        check["verdict"] = "warning" if check["name"] == "disk" else check["verdict"]
    kept.write_text(json.dumps(earlier))
    capsys.readouterr()
    assert main(["doctor", "--compare", str(kept)]) == 0
    printed = capsys.readouterr().out
    rows = [" ".join(line.split()) for line in printed.splitlines()]
    assert "devices devices 8 16 0.50" in rows
    assert "disk verdict ok warning" in rows
    assert main(["doctor", "--compare", str(home)]) == 2
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.slow
def test_simulated_devices_are_fine(state: Path) -> None:
    """Trains, switches, kills, resumes and traces, and leaves no run behind."""
    command = [*SHARDTUI, "doctor", "--train", "--json", "--devices", "4"]
    run = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | {"COLUMNS": "140"})
    assert run.returncode == 0, run.stdout + run.stderr
    checks = {check["name"]: check for check in json.loads(run.stdout)["checks"]}
    assert set(checks) == {
        *("terminal", "interpreter", "packages", "accelerators", "disk", "sockets", "compilation cache", "clock"),
        *("devices", "topology", "presets", "attention", "experts", "digests", "links", "training"),
        *("peak memory", "kill and resume", "switches", "checkpoint", "trace"),
    }
    assert {check["verdict"] for check in checks.values()} == {"ok"}
    assert checks["switches"]["numbers"]["largest relative difference of a loss"] < 1e-5
    assert not list((state / "shardtui" / "runs").iterdir())


def test_a_host_without_an_answer_is_a_warning_that_does_not_name_it(
    state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hosts = state.parent / "XDG_CONFIG_HOME" / "shardtui" / "hosts.toml"
    hosts.parent.mkdir(parents=True)
    hosts.write_text('hosts = ["no-such-host.invalid"]')
    assert main(["doctor"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "warning clocks of hosts 0 of 1 answer; host 1: " in said
    assert "no-such-host" not in said + (state / "shardtui" / "doctor.json").read_text()
    hosts.write_text("hosts = 3")
    assert main(["doctor"]) == 2
    assert "hosts.toml: Expected `array`" in capsys.readouterr().err
