"""Sequence parallelism: each device holds the queries of its positions and gathers only keys and values."""

import pytest
from shardtui.engine.models.sizes import parameter_count
from shardtui.engine.models.task import Task
from shardtui.engine.program.program import Program

from ..conftest import BATCHES, WIDE
from ..hlo.test_collectives import total

EXAMPLES, PART = BATCHES.batch_size // 4, BATCHES.seq_len // 2
"""Examples and positions of one device under `dp-sp2` and `sp2`."""


def test_only_keys_and_values_cross_the_sequence(programs: dict[str, Program]) -> None:
    """Each layer gathers keys and values, and reduces their gradients; parameter gradients are reduced too.

    The CPU compiler sums over one axis after the other, and uses all-reduces for reduce-scatters.
    """
    collectives = programs["dp-sp2"].description.collectives
    assert collectives
    keys_and_values = WIDE.layers * 2 * EXAMPLES * BATCHES.seq_len * WIDE.embed * 4
    parameters = 4 * parameter_count(WIDE)
    assert total(collectives, "all-gather", "seq") == keys_and_values
    assert total(collectives, "all-reduce", "seq") == pytest.approx(parameters + keys_and_values, abs=64)
    assert total(collectives, "all-reduce", "data") == pytest.approx(parameters, abs=64)
    assert {(info.kind, *info.axes) for info in collectives} == {
        ("all-gather", "seq"),
        ("all-reduce", "seq"),
        ("all-reduce", "data"),
    }


@pytest.mark.parametrize("preset", ["dp-sp2", pytest.param("sp2", marks=pytest.mark.slow)])
def test_attention_scores_cover_only_the_devices_own_queries(
    preset: str, task: Task, programs: dict[str, Program]
) -> None:
    text = programs[preset].step.as_text()  # type: ignore[attr-defined]
    scores = f"f32[{EXAMPLES},{WIDE.heads},{{}},{BATCHES.seq_len}]"
    assert scores.format(PART) in text
    assert scores.format(BATCHES.seq_len) not in text
