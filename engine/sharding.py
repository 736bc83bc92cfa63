"""Public API for users' models: `shard` names the logical axes of an activation."""

from .parallel.constraints import shard

__all__ = ["shard"]
