"""Samples of text between steps: by command, and every so many steps."""

import time

from ..base.advice import problems_in
from ..spec.config import UserModel
from ..wire.commands import SampleText
from ..wire.events import Sampled
from .progress import Progress
from .tools import Tools

NOT_BUILT_IN = "only the built-in model can be sampled: its tokens are bytes, which it is known to read"


class TextSampler:
    """Samples text from the state that trains, which it does not change."""

    def __init__(self, tools: Tools) -> None:
        self.tools = tools
        self._last = 0

    def sample_if_due(self, at: Progress) -> None:
        """Samples after every N steps, if the run is to. All processes have begun as many steps."""
        every = self.tools.config.sampling
        if every is None or every.every_steps is None or at.begun in (0, self._last) or at.begun % every.every_steps:
            return
        self._last = at.begun
        self.sample(at, SampleText(0, every))

    def sample(self, at: Progress, command: SampleText) -> None:
        """Samples as the command says; the time that it takes counts for no step. Reports why if it fails."""
        at.reports.flush()
        began = time.perf_counter()
        text, compiled, problem = "", 0.0, NOT_BUILT_IN if isinstance(self.tools.config.model, UserModel) else None
        try:
            if problem is None:
                sampler, compiled = self.tools.compiler.sampler(at.program)
                asked, prompt = command.sampling, command.sampling.prompt.encode() or b"\n"
                found = sampler.sample(at.state, prompt, asked.tokens, asked.temperature, asked.seed)
                text = found.decode(errors="replace")
        except Exception as error:  # training continues without it
            problem = "; ".join(problems_in(error))
        seconds = time.perf_counter() - began - compiled
        self.tools.publish(
            Sampled(
                step=at.done,
                preset=at.program.name,
                number=command.number,
                sampling=command.sampling,
                text=text,
                seconds=seconds,
                compile_seconds=compiled,
                problem=problem,
            )
        )
        at.reports.restart_clock()
