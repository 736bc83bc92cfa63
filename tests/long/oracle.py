"""Writes what `transformers` computes for tiny models, and compares: `python tests/long/oracle.py`.

It needs the extra `oracle`. The answers go to tests/oracle/answers/, which tests/oracle/test_oracle.py compares with;
`--record` also stores the table of docs/models.md. With `--compare` it only compares, which needs no extra.
"""

import argparse
import json
from pathlib import Path
from tempfile import TemporaryDirectory

import cpu_devices  # noqa: F401
import numpy as np
from shardtui.engine.spec.hf_export import config_table
from shardtui.engine.spec.hf_tensors import parts_of

from tests.oracle import defaults
from tests.oracle.ours import ANSWERS, Model
from tests.oracle.tiny import CONFIGS, TRAINED, in_files, tensors_of
from tests.suite import versions
from tests.table import Table, arguments

COLUMNS = {"architecture": "", **dict.fromkeys(("logits", "loss", "gradients", "ten steps", "exported"), "{:.1e}")}


def write_answers() -> None:
    from tests.oracle.theirs import VERSIONS, answers  # torch is not needed to compare

    for architecture in CONFIGS:
        np.savez_compressed(ANSWERS / f"{architecture}.npz", **answers(architecture))
    (ANSWERS / "versions.txt").write_text(VERSIONS)
    defaults.write()


def compared(architecture: str) -> list[float | None]:
    """The largest absolute difference of logits, loss, gradients and losses."""
    with TemporaryDirectory() as folder:
        model = Model(architecture, Path(folder))
        forward = list(model.forward().values())
        if architecture not in TRAINED:
            return [*forward, None, None]
        return [*forward, max(model.gradients().values()), *model.losses().values()]


def exported(architecture: str) -> float:
    """The largest absolute difference of logits if transformers loads the config that `export` writes."""
    from tests.oracle.theirs import logits_of

    with TemporaryDirectory() as folder:
        model = Model(architecture, Path(folder))
        before = logits_of(Path(folder), tensors_of(model.config, architecture))
        table = config_table(model.config)
        (written,) = table["architectures"]
        empty = tensors_of(model.config, written)
        (Path(folder) / "config.json").write_text(json.dumps(table))
        after = logits_of(Path(folder), in_files(model.params, empty, parts_of(model.config, written)))
        return float(np.abs(after - before).max())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--compare", action="store_true", help="keep the answers that are there")
    options = arguments(parser)
    if not options.compare:
        write_answers()
    print(f"{versions()}, {(ANSWERS / 'versions.txt').read_text()}")
    with Table("long/oracle", COLUMNS, options.record) as table:
        for architecture in CONFIGS:
            again = None if options.compare else exported(architecture)
            table.add(f"`{architecture}`", *compared(architecture), again)


if __name__ == "__main__":
    main()
