"""The switch of a running training to another preset."""

import time
from collections.abc import Callable

from ..base.invalid import Invalid
from ..checkpoint.saver import Saver
from ..distributed.cluster import Cluster
from ..program.compiler import Compiler, Ready
from ..program.memory import limit, shortage
from ..program.program import Program
from ..program.reshard import bytes_moved, move_state
from ..spec.config import RunConfig
from ..wire.events import Event, Switched, Switching
from .progress import Progress


class Switcher:
    def __init__(
        self, config: RunConfig, compiler: Compiler, saver: Saver, cluster: Cluster, publish: Callable[[Event], None]
    ) -> None:
        self._config = config
        self._compiler = compiler
        self._saver = saver
        self._cluster = cluster
        self._publish = publish

    def switch(self, at: Progress, ready: Ready) -> None:
        """Moves the state, and trains under the program that is ready. All steps are done. Raises Invalid and Failure,
        and leaves `at` as it is; with `--low-memory` its state may be gone then."""
        source, target = at.program, ready.program
        self.refuse_shortage(target)
        self._publish(Switching(to_preset=target.name, step=at.done))
        began = time.perf_counter()
        if self._config.low_memory:
            self._save_for_sure(at)
        moved = self._cluster.collectively(
            lambda: move_state(at.state, source, target, self._compiler.movers, self._config.low_memory)
        )
        at.state, at.program, at.before = moved.state, target, source
        self._publish(
            Switched(
                from_preset=source.name,
                to_preset=target.name,
                step=at.done,
                arrays=len(moved.before),
                bytes_moved=bytes_moved(
                    moved.state, source.placement.state_shardings, target.placement.state_shardings
                ),
                stall_seconds=time.perf_counter() - began,
                compile_seconds=ready.compile_seconds,
                digests_equal=moved.digests_equal,
                digest="mix64",
                loss_before=at.reports.last_loss,
            )
        )

    def take_back(self, at: Progress) -> None:
        """After a switch whose first step failed: the state goes back to where it was, as far as it is still there.
        Raises Failure where it is not."""
        assert at.before is not None, "there was a switch"
        source, low_memory = at.before, self._config.low_memory
        at.state = self._cluster.together(
            lambda: self._compiler.movers.move(at.state, source.placement.state_shardings, low_memory)
        )
        at.program, at.before, at.agree_at = source, None, at.begun

    def refuse_shortage(self, program: Program) -> None:
        """Raises Invalid where the devices of a process have less memory than the program takes."""

        def check() -> None:
            available = limit(self._compiler.devices, self._config.device_memory)
            if problem := shortage(program.name, program.description.memory, available):
                raise Invalid(problem)

        self._cluster.together(check)

    def _save_for_sure(self, at: Progress) -> None:
        """Before the state is taken apart. Raises Invalid where no checkpoint of it is good."""
        at.save(self._saver)
        saved = self._saver.newest()
        if saved is None or saved.step != at.done:
            raise Invalid(
                f"step {at.done} could not be saved, and a switch with --low-memory needs that: "
                "mend what keeps it from being saved, and switch again"
            )
