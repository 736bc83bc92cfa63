"""Formulas for families other than GPT-2, against programs for eight CPU devices, the jaxpr and records of TPUs."""

import json
from pathlib import Path
from statistics import median
from typing import Any

import jax
import msgspec
import pytest
from shardtui.engine.hlo.traffic import flows
from shardtui.engine.models.flops import flops_by_scope
from shardtui.engine.models.task import Task
from shardtui.engine.planning.estimate import Step
from shardtui.engine.program.placement import place
from shardtui.engine.program.program import compile_program, trace_step
from shardtui.engine.spec.preset_reader import load_preset
from shardtui.engine.spec.topology import load_topology

from ..conftest import BATCHES, WIDE, tiny_config
from ..models.families import FAMILIES
from .test_estimate import built_in_task

RECORDED = Path(__file__).parents[2] / "docs" / "data" / "long" / "estimates-families.json"
SIZES = {"embed": WIDE.embed, "heads": WIDE.heads, "mlp": WIDE.mlp, "context": WIDE.context, "layers": 4}


def wide_task(family: str, **changes: Any) -> Task:
    """Returns a task of a family in the sizes of `WIDE`, so that formulas can be judged by it."""
    kv_heads = WIDE.heads // 2 if FAMILIES[family].is_grouped else 0
    model = msgspec.structs.replace(FAMILIES[family], **SIZES, kv_heads=kv_heads, **changes)
    return Task(tiny_config(model=model, training=BATCHES), "cpu")


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_formulas_have_the_arguments_and_what_data_parallelism_sends(family: str) -> None:
    task = wide_task(family)
    for name in ("dp", "fsdp"):
        step = Step(task, load_preset(name), 8)
        compiled = compile_program(task, place(task, load_preset(name), jax.devices())).description
        assert compiled.memory and compiled.collectives
        assert step.argument_bytes == compiled.memory.arguments, name
        sent = sum(flow.bytes_sent for flow in flows(compiled.collectives))
        assert sum(flow.bytes_sent for flow in step.flows) == pytest.approx(sent, rel=0.002), name


@pytest.mark.slow
@pytest.mark.parametrize("remat", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_formulas_count_the_operations_of_the_jaxpr(family: str, remat: bool) -> None:
    task = wide_task(family, remat=remat)
    placement = place(task, load_preset("dp"), jax.devices())
    counted = sum(filter(None, flops_by_scope(trace_step(task, placement).jaxpr).values()))
    assert 8 * Step(task, load_preset("dp"), 8).work.flops == pytest.approx(counted, rel=0.02)


def tpu_step(name: str, preset: str, devices: int, *settings: str) -> Step:
    return Step(built_in_task(name, *settings), load_preset(preset), devices)


def test_windowed_products_send_one_shard_more_than_there_are() -> None:
    """As counted in the text of qwen3-0.6b under fsdp on v5e:2x4, libtpu 0.0.42.1."""
    step = tpu_step("qwen3-0.6b", "fsdp", 8, "batch_size=16", "seq_len=2048")
    permutes = next(flow for flow in step.flows if flow.kind == "collective-permute")
    layers, wide, narrow = 28, 1024 * 3072 * 2, 1024 * 16 * 128 * 2
    forward, last, gradients = 3 * wide + 3 * narrow, wide, 3 * wide + 3 * narrow
    assert permutes.bytes_sent == layers * (forward + last + gradients) * 9 // 8
    assert permutes.bytes_sent == pytest.approx(2180.0e6, rel=1e-3)


def test_no_product_is_windowed_over_64_devices() -> None:
    kinds = {flow.kind for flow in tpu_step("llama3-70b", "fsdp", 64, "batch_size=64").flows}
    assert kinds == {"all-gather", "all-reduce"}, "gradients over a whole slice are all-reduced"


def test_windows_leave_out_scores_before_them() -> None:
    local, everywhere = (
        tpu_step("gemma3-4b", "fsdp", 8, "batch_size=8", f"window={window}") for window in (1024, 4096)
    )
    assert everywhere.layout.computed_scores == (1 + 512 / 4096) / 2
    blocks = sum(min(block + 1, 3) for block in range(8))  # of 512: its own, and two for the 1,023 positions before
    windowed = blocks * 512**2 / 4096**2
    full, layers = everywhere.layout.computed_scores, 34
    assert local.layout.computed_scores == pytest.approx((29 * windowed + 5 * full) / layers)


@pytest.mark.slow
def test_recorded_estimates_are_those_of_the_formulas_and_near_the_compiler() -> None:
    peaks, sent = list[float](), list[float]()
    for entry in json.loads(RECORDED.read_text()).values():
        for name, topology, preset, settings, peak, compiled, off, _, moved, _, moved_off in entry["rows"]:
            peaks.append(abs(off))
            sent.append(abs(moved_off))
            if not name.startswith("hf:"):
                step = tpu_step(name, preset, load_topology(topology).devices, *settings.split())
                assert sum(step.parts.values()) == peak == pytest.approx(compiled * (1 + off)), name
                assert sum(flow.bytes_sent for flow in step.flows) == moved, name
    assert len(peaks) >= 8
    assert median(peaks) <= 0.05 and median(sent) <= 0.02
