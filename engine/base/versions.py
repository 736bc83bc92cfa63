"""The versions of Python and of the packages that an engine runs on."""

import sys
from importlib.metadata import PackageNotFoundError, version

PACKAGES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "grain", "numpy")
"""Packages that decide what a compiled program is and what it computes."""


def versions() -> dict[str, str]:
    return {"python": sys.version.split()[0], **{name: version(name) for name in PACKAGES}}


def installed_version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
