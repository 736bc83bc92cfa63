"""For models of users: `shard` names the logical axes of an activation."""

from .parallel.constraints import shard

__all__ = ["shard"]
