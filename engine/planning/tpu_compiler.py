"""Whether the TPU compiler is installed. Imports neither it nor jax."""

from importlib.util import find_spec

NO_COMPILER = "the TPU compiler is not installed: run `pip install 'shardtui[tpu]'` (needs no TPU)"


def is_installed() -> bool:
    """Returns whether `libtpu` can be imported."""
    return find_spec("libtpu") is not None
