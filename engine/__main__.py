"""The engine's command line, which the UI calls: `python -m shardtui.engine QUESTION ARGUMENT …`, structs as JSON."""

import faulthandler
import inspect
import os
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

import msgspec

from .base.machine import accelerators
from .base.output import make_stderr_printable, say
from .base.processes import end_with_parent
from .wire.ending import adopt_pipe
from .wire.engine_command import answered

RUNS = {
    "serve": "training.serve.serve_run",
    "host": "training.serve.host",
    "supervise": "supervision.supervisor.supervise",
    "supervise-host": "supervision.host_supervisor.supervise_host",
}
"""The functions that run an engine; their parameters are its arguments."""
PROGRAMS = {"compile-programs": "program.compiler_process.compile_programs"}
"""The function that compiles programs for an engine, which stdin announces."""
ANSWERS = (
    RUNS
    | PROGRAMS
    | {
        "presets": "program.presets.list_presets",
        "inspect": "program.inspection.inspect",
        "inspect-origins": "explain.step.inspect_explained",
        "why": "explain.step.explain_step",
        "explain": "explain.programs.explain_program",
        "explain-for": "planning.program_cost.explain_for",
        "explain-kept": "explain.programs.explain_kept",
        "plan": "planning.answers.plan",
        "search": "planning.answers.search",
        "compile": "planning.answers.compile_one",
        "profile": "profiling.breakdown.profile",
        "predict": "profiling.predicted.predict",
        "verify": "checkpoint.directory.verify_run",
        "export": "checkpoint.export.export",
        "checkpoints": "checkpoint.orbax_checkpoint.describe_checkpoints",
        "place-checkpoint": "checkpoint.orbax_placement.place_checkpoint",
        "prepare": "data.prepare.prepare_until_interrupted",
        "examine": "doctor.examine.examine",
    }
)
"""The functions that answer a question; their parameters are its arguments."""
ON_CPU = (
    *("verify", "export", "checkpoints", "place-checkpoint", "plan", "search", "compile"),
    *("explain", "explain-for", "explain-kept", "profile", *PROGRAMS),
)
"""Questions that use only the CPU, even if there are other devices."""


def main() -> int:
    """Answers one question and returns the exit code. Imports only what that needs, because jax takes a second."""
    make_stderr_printable()
    faulthandler.enable()  # else a library that crashes the process may leave no word
    question, *texts = sys.argv[1:] or [""]
    if question not in ANSWERS:
        say(f"{question}: no such question: choose from {', '.join(ANSWERS)}")
        return 2
    if question in ON_CPU:
        os.environ["JAX_PLATFORMS"] = "cpu"
    elif not accelerators():  # else libtpu and the plugin for GPUs, if they are installed, print that there are none
        os.environ.setdefault("JAX_PLATFORMS", "cpu")
    adopt_pipe()
    if question not in RUNS | PROGRAMS:
        end_with_parent()  # before jax is imported
    module, _, name = ANSWERS[question].rpartition(".")
    answer = getattr(import_module(f".{module}", __package__), name)
    return answered(answer, *_arguments(answer, texts))


def _arguments(answer: Callable[..., object], texts: Sequence[str]) -> list[Any]:
    """Returns the arguments of a function: strings as they are, others from JSON."""
    parameters = list(inspect.signature(answer).parameters.values())
    kinds = [parameters[min(index, len(parameters) - 1)].annotation for index in range(len(texts))]
    return [
        text if kind is str else msgspec.json.decode(text, type=kind) for kind, text in zip(kinds, texts, strict=True)
    ]


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # without waiting for background compilations
