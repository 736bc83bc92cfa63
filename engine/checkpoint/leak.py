"""Keeps what tensorstore never frees small.

tensorstore 0.1.86 hands every key and value of a dictionary that it makes of JSON to `PyDict_SetItem`, which takes
references of its own, and never releases its own (`JsonToPyObject` in python/tensorstore/json_type_caster.cc). Orbax
0.12.8 asks for such dictionaries twice a save (14 kB) and for each array (0.25 kB).
"""

import contextlib
import copy
import functools
from collections.abc import Callable
from typing import Any


@functools.cache
def stop_leaks() -> None:
    """In this process. Does nothing where other versions have other functions."""
    with contextlib.suppress(ImportError, AttributeError):
        from orbax.checkpoint._src.serialization import tensorstore_utils

        if hasattr(tensorstore_utils, "get_tensorstore_raw_bytes"):  # for a line in Orbax's log, which 0 leaves out
            tensorstore_utils.get_tensorstore_raw_bytes = lambda *_, **__: 0
        spec = tensorstore_utils.ts.KvStore.Spec
        spec.to_json = _remembered(spec.to_json)


def _remembered(to_json: Callable[..., Any]) -> Callable[..., Any]:
    """Asked once for a directory, not once for each array in it: `repr` says all that is in a specification."""
    known: dict[str, Any] = {}

    def remembered(spec: Any, *arguments: Any, **options: Any) -> Any:
        key = f"{spec!r} {arguments} {options}"
        found = known.get(key)
        if found is None:
            found = to_json(spec, *arguments, **options)
            known.clear()
            known[key] = found
        return copy.deepcopy(found)

    return remembered
