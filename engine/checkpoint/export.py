"""Writes a checkpoint as a model of Hugging Face's `transformers`, one stored piece of an array at a time."""

import json
import math
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from etils import epath

from ..base.atomic_write import sync_directory, writing
from ..base.untrusted import read_struct
from ..base.user_error import UserError
from ..distributed.outcomes import Damaged, Unreadable
from ..program.weights import by_parameter, mapped, parts_in
from ..spec.config import ModelConfig, RunConfig
from ..spec.hf_config import NAME, read_config
from ..spec.hf_export import Dtype, Exported, ExportRequest, config_table, in_files
from ..spec.hf_fields import Table
from ..spec.hf_tensors import Part, parts_of, tensor_shapes
from ..spec.prepared import TOKENIZER
from ..spec.safetensors import INDEX, SIZES, Stored, stored_tensors
from ..wire.run_directory import RunDirectory
from .directory import CheckpointDirectory
from .reading import as_user_error, is_local

MOST_BYTES = 5_000_000_000
"""Size of a file, unless one tensor is larger, as by transformers."""
NAMES: dict[Dtype, str] = {"float32": "F32", "bfloat16": "BF16", "float16": "F16"}
TOKENIZER_FILES = (
    *(TOKENIZER, "tokenizer_config.json", "special_tokens_map.json", "tokenizer.model", "vocab.json", "merges.txt"),
    *("added_tokens.json", "chat_template.jinja", "generation_config.json"),
)


def export(request: ExportRequest) -> Exported:
    """Writes `*.safetensors`, `config.json` and the tokenizer, under their directory's name only once all are complete.
    Raises UserError; then nothing is left."""
    run, out = RunDirectory(Path(request.run)), Path(request.out)
    config = run.config
    if not isinstance(config.model, ModelConfig):
        raise UserError(
            f"run {run.name}: its model {config.model_name} is your own code: transformers has no such model"
        )
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"{out}: exists already: name a new directory, or remove it")
    table = _table(config, config.model)
    checkpoints = CheckpointDirectory(epath.Path(run.checkpoints(config)))
    step = _intact(checkpoints, request.step, run.name)
    dtype = request.dtype or _dtype_of(config)
    model = in_files(config.model)
    parts = list(parts_of(model, table["architectures"][0]))
    with _complete_or_nothing(out) as folder:
        tensors = allocated(folder, tensor_shapes(parts), NAMES[dtype])
        fill(tensors, parts, checkpoints.path(step) / "arrays")
        table |= {"torch_dtype": dtype}
        (folder / NAME).write_text(json.dumps(table, indent=2) + "\n")
        tokenizer = _copy_tokenizer(config, folder)
        files = sorted(path.name for path in folder.iterdir())
    elements = sum(math.prod(tensor.shape) for tensor in tensors.values())
    return Exported(
        directory=str(out),
        step=step,
        architecture=table["architectures"][0],
        dtype=dtype,
        parameters=elements,
        bytes=elements * SIZES[NAMES[dtype]],
        files=files,
        tokenizer=tokenizer,
    )


def _table(config: RunConfig, model: ModelConfig) -> Table:
    if config.weights and (source := Path(config.weights) / NAME).exists():
        found = read_config(source.parent, dropout=model.dropout)
        if in_files(found) == in_files(model):
            table = read_struct(source, Table)
            return {name: value for name, value in table.items() if name not in ("dtype", "torch_dtype")}
    return config_table(model)


def _intact(checkpoints: CheckpointDirectory, step: int | None, run: str) -> int:
    """Returns the step of the newest checkpoint whose files are as they were written, or `step`."""
    with as_user_error():
        known = checkpoints.steps()
    if not known or step not in (None, *known):
        there = f"there are {', '.join(map(str, known))}" if known else "it has none: save one with c, or end the run"
        raise UserError(f"run {run}: no checkpoint{'' if step is None else f' of step {step}'}: {there}")
    problems: list[str] = []
    for candidate in reversed(known) if step is None else [step]:
        try:
            checkpoints.checked(candidate)
        except (Damaged, Unreadable) as error:
            problems += [f"checkpoint {candidate}: {problem}" for problem in error.problems]
        else:
            return candidate
    raise UserError(*problems)


def _dtype_of(config: RunConfig) -> Dtype:
    """The common dtype of the run's initial weights; without one, float32, as the parameters have."""
    found = {tensor.dtype for tensor in stored_tensors(Path(config.weights)).values()} if config.weights else set[str]()
    same: list[Dtype] = [name for name, stored in NAMES.items() if found == {stored}]
    return same[0] if same else "float32"


@contextmanager
def _complete_or_nothing(out: Path) -> Iterator[Path]:
    with writing(f"{out}"):
        out.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix=f".{out.name}-", dir=out.parent, ignore_cleanup_errors=True) as name:
            folder = Path(name)
            yield folder
            for path in folder.iterdir():
                with path.open("rb") as file:
                    os.fsync(file.fileno())
            folder.chmod(0o755)
            folder.rename(out)
        sync_directory(out.parent)


def allocated(folder: Path, shapes: Mapping[str, list[int]], dtype: str) -> dict[str, Stored]:
    """Writes the headers of files with room for all tensors, and their index if there are several."""
    groups: list[dict[str, int]] = [{}]
    for name, shape in shapes.items():
        size = math.prod(shape) * SIZES[dtype]
        if groups[-1] and sum(groups[-1].values()) + size > MOST_BYTES:
            groups.append({})
        groups[-1][name] = size
    several = len(groups) > 1
    places: dict[str, str] = {}
    for number, sizes in enumerate(groups, 1):
        file = f"model-{number:05}-of-{len(groups):05}.safetensors" if several else "model.safetensors"
        _allocate(folder / file, sizes, shapes, dtype)
        places |= dict.fromkeys(sizes, file)
    if several:
        total = sum(size for sizes in groups for size in sizes.values())
        (folder / INDEX).write_text(json.dumps({"metadata": {"total_size": total}, "weight_map": places}, indent=2))
    return stored_tensors(folder)


def _allocate(path: Path, sizes: Mapping[str, int], shapes: Mapping[str, list[int]], dtype: str) -> None:
    """Writes a header, and takes the room for its tensors: a full disk is noticed here, not in a mapped file."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, size in sizes.items():
        header[name] = {"dtype": dtype, "shape": shapes[name], "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)  # so that tensors are aligned
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.flush()
        os.posix_fallocate(file.fileno(), 8 + len(text), end)


def fill(tensors: Mapping[str, Stored], parts: Iterable[Part], arrays: epath.Path) -> None:
    """Copies every parameter into the tensors, one stored piece at a time. `arrays`: their directory."""
    for name, own in by_parameter(parts).items():
        for bounds, piece in _pieces(arrays, f"params.{name}"):
            for part, taken, here in parts_in(own, bounds):
                part.from_file(mapped(tensors[part.tensor], "r+")[part.rows])[taken] = piece[here]


def _pieces(arrays: epath.Path, name: str) -> Iterator[tuple[list[range], np.ndarray]]:
    """Yields the bounds of each piece of an array, and the piece, as devices wrote them. Raises what TensorStore
    raises."""
    import tensorstore

    base = f"file://{arrays}" if is_local(arrays) else os.fspath(arrays)
    store = {"driver": "ocdbt", "base": f"{base}/state/", "path": name}
    array = tensorstore.open({"driver": "zarr3", "kvstore": store}).result()
    steps: Any = array.chunk_layout.read_chunk.shape
    cuts = [
        [range(at, min(at + step, size)) for at in range(0, size, step)]
        for size, step in zip(array.shape, steps, strict=True)
    ]
    for bounds in product(*cuts):
        yield list(bounds), array[tuple(slice(each.start, each.stop) for each in bounds)].read().result()


def _copy_tokenizer(config: RunConfig, folder: Path) -> str | None:
    """Copies the tokenizer of the weights, or of the data. Returns its file's name."""
    sources = [Path(source) for source in (config.weights, config.data) if source]
    source = next((source for source in sources if (source / TOKENIZER).exists()), None)
    for name in TOKENIZER_FILES if source else ():
        if source and (source / name).is_file():
            shutil.copyfile(source / name, folder / name)
    return TOKENIZER if source else None
