"""What `plan --search` chooses, against the best of its finalists: `python tests/long/search.py [--record]`.

Six models on three topologies, with a batch that is kept. All 40 finalists of each are compiled. Then the search is
played back on these: what it would choose after each compilation, and where it would end. Needs the extra `tpu`, no
TPU, and two cores for 13 to 25 s a program, some 500. What was compiled before is kept.
"""

import argparse
import itertools
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

import msgspec
from shardtui.engine.hlo.step_cost import StepCost
from shardtui.engine.planning.finalists import next_to_compile
from shardtui.engine.planning.goal import CHOSEN, SearchRequest, configured, figure, pick
from shardtui.engine.planning.ranking import Board, Row
from shardtui.engine.spec.config import RunConfig

from tests.long.estimates import LLAMA_1B, ask, config_of
from tests.suite import versions
from tests.table import Table, arguments

MODELS = """
nano                                        batch_size=64
nano-moe                                    batch_size=64
gpt2                                        batch_size=64 seq_len=128 layers=4
qwen3-0.6b                                  batch_size=32 seq_len=256 layers=4
hf:llama                                    batch_size=32 seq_len=256 layers=4
docs/examples/transformer.py:language_model batch_size=64 seq_len=128 width=256
"""
TOPOLOGIES = ("v5e:2x4", "v4:2x2x1", "v5p:2x2x2")
COUNTS = (1, 4, 16)
"""Numbers of compilations after which a search is looked at."""
GOAL = "tokens-per-second"
LLAMA = {**LLAMA_1B, "hidden_size": 1024, "intermediate_size": 4096, "num_attention_heads": 16, "vocab_size": 32000}
"""A Llama that compiles quickly."""
COLUMNS = {"model": "", "topology": "", "best of those compiled": "{}", "tokens/s": "{:.3g}"}
COLUMNS |= {f"off after {count}": "{:+.1%}" for count in COUNTS}
COLUMNS |= {"chosen off": "{:+.1%}", "compiled until then": "{}"}
"""Off is the rate of the best so far, after so many compilations, less that of the best of all."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    models = {line.split()[0]: line.split()[1:] for line in MODELS.strip().split("\n")}
    parser.add_argument("--models", nargs="+", metavar="M", choices=models, default=list(models))
    parser.add_argument("--topologies", nargs="+", metavar="T", choices=TOPOLOGIES, default=TOPOLOGIES)
    options = arguments(parser)
    print(f"{versions()}\n")
    losses: list[float] = []
    with Table("long/search", COLUMNS, options.record) as table:
        for name, topology in itertools.product(options.models, options.topologies):
            began = time.perf_counter()
            config = config_of(name, tuple(models[name]), "dp", LLAMA)
            rows = compiled(config, topology)
            losses.append(add(table, name, topology, rows))
            print(f"{time.perf_counter() - began:.0f} s", file=sys.stderr)
    print(
        f"\nwithin 5 % of the best: {sum(loss >= -0.05 for loss in losses)} of {len(losses)}; worst {min(losses):.1%}"
    )


def compiled(config: RunConfig, topology: str) -> list[Row]:
    """The finalists of a search for the model, each compiled."""
    request = SearchRequest(goal=GOAL, kept=[key for key in CHOSEN if key != "remat"])
    answer = ask("search", config, topology, msgspec.json.encode(request).decode(), limit=None)
    finalists = msgspec.json.decode(answer, type=Board).rows
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        costs = pool.map(lambda row: cost_of(config, topology, row), finalists)
    return [msgspec.structs.replace(row, compiled=cost) for row, cost in zip(finalists, costs, strict=True)]


def cost_of(config: RunConfig, topology: str, row: Row) -> StepCost:
    answer = ask("compile", configured(config, row.settings), topology, row.preset, limit=None)
    return msgspec.json.decode(answer, type=StepCost)


def add(table: Table, name: str, topology: str, rows: list[Row]) -> float:
    """Adds a case, and returns how far the choice is from the best."""
    best = pick(rows, GOAL)
    assert best, "none fits"
    known = [msgspec.structs.replace(row, compiled=None) for row in rows]
    choices: list[Row] = []
    while chosen := next_to_compile(known, GOAL):
        known[known.index(chosen)] = rows[known.index(chosen)]
        choices.append(pick([row for row in known if row.compiled], GOAL) or rows[0])
    off = [rate(choice) / rate(best) - 1 for choice in choices]
    after = [off[min(count, len(off)) - 1] for count in COUNTS]
    ends = f"{len(choices)} of {len(rows)}"
    table.add(name, topology, best.title, rate(best), *after, off[-1], ends)
    return off[-1]


def rate(row: Row) -> float:
    return figure(row, GOAL) or 0.0


if __name__ == "__main__":
    main()
