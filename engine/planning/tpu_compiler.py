"""Whether the TPU compiler is here at all. Loads neither it nor jax."""

from importlib.util import find_spec

NO_COMPILER = "the TPU compiler is not installed: `pip install 'shardtui[tpu]'` gets it, no TPU is needed"


def is_installed() -> bool:
    return find_spec("libtpu") is not None
