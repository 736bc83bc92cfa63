"""Limits a memory leak in tensorstore.

tensorstore 0.1.86 never releases its references to the keys and values of a dictionary that it builds from JSON:
`PyDict_SetItem` takes references of its own (`JsonToPyObject` in python/tensorstore/json_type_caster.cc). Orbax 0.12.8
requests such dictionaries twice per save (14 kB) and once per array (0.25 kB).
"""

import contextlib
import copy
import functools
from collections.abc import Callable
from typing import Any


@functools.cache
def stop_leaks() -> None:
    """Patches Orbax and tensorstore in this process. Does nothing if other versions have other functions."""
    with contextlib.suppress(ImportError, AttributeError):
        from orbax.checkpoint._src.serialization import tensorstore_utils

        if hasattr(tensorstore_utils, "get_tensorstore_raw_bytes"):  # only for a log line, which Orbax omits for 0
            tensorstore_utils.get_tensorstore_raw_bytes = lambda *_, **__: 0
        spec = tensorstore_utils.ts.KvStore.Spec
        spec.to_json = _cached(spec.to_json)


def _cached(to_json: Callable[..., Any]) -> Callable[..., Any]:
    """Caches the last result by the specification's `repr`, which is complete: all arrays of a directory share one."""
    cache: dict[str, Any] = {}

    def cached_to_json(spec: Any, *arguments: Any, **options: Any) -> Any:
        key = f"{spec!r} {arguments} {options}"
        found = cache.get(key)
        if found is None:
            found = to_json(spec, *arguments, **options)
            cache.clear()
            cache[key] = found
        return copy.deepcopy(found)

    return cached_to_json
