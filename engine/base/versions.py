"""What an engine runs on."""

import sys
from importlib.metadata import version

PACKAGES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "grain", "numpy")


def versions() -> dict[str, str]:
    """Of Python and of the packages, as they are installed."""
    return {"python": sys.version.split()[0], **{name: version(name) for name in PACKAGES}}
