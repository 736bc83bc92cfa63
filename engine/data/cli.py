"""The engine's part of `shardtui data prepare`."""

import signal

from ..spec.prepared import PrepareRequest
from ..wire.stdout import print_answer
from .prepare import prepare


def prepare_and_print(request: PrepareRequest) -> None:
    """Prepares data and prints their description as JSON. Ctrl-C ends it at once: what is written stays."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    print_answer(prepare(request))
