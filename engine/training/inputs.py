"""The batches of a run: of training and held-out data, and their transfer to the devices."""

from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import jax

from ..base.user_error import UserError
from ..data.batches import Batches
from ..data.corpus import Corpus
from ..data.source import read_corpus
from ..models.task import Task
from ..models.user_batches import UserBatches
from ..program.program import Program
from ..spec.config import RunConfig, UserModel
from ..wire.descriptions import CorpusInfo


@dataclass(frozen=True)
class Inputs:
    batches: Batches | UserBatches
    corpus: CorpusInfo
    held_out: Batches | None = None
    held_out_corpus: CorpusInfo | None = None


def inputs_of(task: Task) -> Inputs:
    batches = task.model.batches
    return Inputs(batches, batches.describe()) if batches else text_inputs(task.config)


def text_inputs(config: RunConfig) -> Inputs:
    training, corpus = config.training, read_corpus(config.data)
    vocab = None if isinstance(config.model, UserModel) else config.model.vocab

    def batches(of: Corpus) -> Batches:
        if vocab is not None:
            of.check_samples(vocab)
        return Batches(of, training.batch_size, training.seq_len, config.seed, vocab)

    if config.evaluation is None:
        return Inputs(batches(corpus), corpus.describe())
    share, data = config.evaluation.share, config.evaluation.data
    corpus, held_out = (corpus, read_corpus(data, "--eval-data")) if share is None else corpus.split(share)
    evaluated = batches(held_out)
    if not evaluated.full_batches:
        raise UserError(
            f"{held_out.option} {held_out.source}: {held_out.size:,} {held_out.unit} are fewer than one batch of "
            f"{training.batch_size} × {training.seq_len} + 1: {'give more data' if share is None else 'hold more out'}"
        )
    return Inputs(batches(corpus), corpus.describe(), evaluated, held_out.describe())


class DeviceBatches:
    """Puts each batch on the devices, sharded as the program expects."""

    def __init__(self, batches: Batches | UserBatches, processes: int) -> None:
        self._batches = batches
        self._processes = processes

    def batch(self, number: int, program: Program) -> Any:
        """Returns batch `number` on the devices, in the structure that the program's step takes. With several
        processes, each reads only the rows that its own devices hold. Raises UserError if a user's batch cannot be
        made."""
        shardings, structure = jax.tree.flatten(program.placement.batch_shardings)
        if self._processes == 1:
            return structure.unflatten(map(jax.device_put, jax.tree.leaves(self._batches[number]), shardings))
        shapes = [array.shape for array in program.description.arrays if array.kind == "batch"]

        @cache
        def rows(begin: int, end: int) -> list[Any]:
            return jax.tree.leaves(self._batches.rows(number, range(begin, end)))

        def part(leaf: int, index: Any) -> Any:
            begin, end, _ = index[0].indices(shapes[leaf][0])
            return rows(begin, end)[leaf][:, *index[1:]]

        return structure.unflatten(
            jax.make_array_from_callback(tuple(shapes[leaf]), sharding, partial(part, leaf))
            for leaf, sharding in enumerate(shardings)
        )
