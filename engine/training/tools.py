"""The tools of a run. They stay the same from step to step: what changes is in `Progress`."""

from collections.abc import Callable
from dataclasses import dataclass

from ..checkpoint.saver import Saver
from ..distributed.cluster import Cluster
from ..program.compiler import Compiler
from ..spec.config import RunConfig
from ..wire.events import Event
from ..wire.inbox import Inbox
from .profiler import Profiler


@dataclass(frozen=True)
class Tools:
    config: RunConfig
    compiler: Compiler
    saver: Saver
    profiler: Profiler
    cluster: Cluster
    inbox: Inbox
    publish: Callable[[Event], None]
    is_supervised: bool = False
    """Whether a supervisor restarts the run if it ends early."""
