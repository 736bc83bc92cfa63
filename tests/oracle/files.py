"""Writes tensors as `*.safetensors`, as transformers does."""

import json
from pathlib import Path

import numpy as np

from .tiny import Tensors

DTYPES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16", "int64": "I64"}


def write_file(path: Path, tensors: Tensors) -> None:
    """Writes one file."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, tensor in tensors.items():
        begin, end = end, end + tensor.nbytes
        header[name] = {"dtype": DTYPES[tensor.dtype.name], "shape": list(tensor.shape), "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    data = b"".join(np.ascontiguousarray(tensor).tobytes() for tensor in tensors.values())
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


def write_files(directory: Path, tensors: Tensors) -> None:
    """Writes two files and their index."""
    names = sorted(tensors)
    halves = {"model-1.safetensors": names[::2], "model-2.safetensors": names[1::2]}
    for file, half in halves.items():
        write_file(directory / file, {name: tensors[name] for name in half})
    places = {name: file for file, half in halves.items() for name in half}
    (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
