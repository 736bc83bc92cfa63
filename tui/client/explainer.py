"""Explains steps by Shardy's passes, each step once, in an engine process of its own that uses no device."""

import asyncio
from collections.abc import Awaitable, Callable

import msgspec

from ...engine.base.encoding import encode_json
from ...engine.explain.explanation import Explanation, KeptStepRequest, ProgramRequest, StepRequest
from ..terminal.clean import clean
from .engine_process import NICENESS, Answer, EngineProcess, NoAnswer

Rules = dict[str, list[str]]
"""Logical axis to mesh axes, as `StepRequest.rules`."""
Explain = Callable[[Rules], Awaitable[list[Explanation]]]
"""Explains one step, and once more with the given rules if there are any. Raises UserError."""


async def explain_program(program: ProgramRequest) -> Explanation:
    return _explanations((await EngineProcess().ask(program.question, program)).checked(), 1)[0]


def _explanations(answer: Answer, count: int) -> list[Explanation]:
    """Reads the last lines of an engine's answer: the user's program may print before them. Raises NoAnswer."""
    try:
        lines = answer.output.rstrip().splitlines()[-count:]
        return [clean(msgspec.json.decode(line, type=Explanation)) for line in lines]
    except msgspec.MsgspecError as error:
        raise NoAnswer(f"the engine's answer cannot be read: {error}") from error


class Explainer:
    """Keeps every explanation while the UI lives. One process runs at a time."""

    def __init__(self) -> None:
        self._tasks: dict[bytes, asyncio.Task[list[Explanation]]] = {}
        """The explanations that are known or under way, by their step."""
        self._turn = asyncio.Lock()

    async def explain(self, step: StepRequest | KeptStepRequest) -> list[Explanation]:
        """Returns the explanation of a step, then with the rules to try, if any. Raises UserError, and NoAnswer.

        A cancelled caller leaves the process running: its answer is kept. After a failure the next call tries again."""
        key = encode_json(step)
        if key not in self._tasks:
            self._tasks[key] = task = asyncio.create_task(self._ask(step))
            task.add_done_callback(lambda task: self._forget_failed(key, task))
        return await asyncio.shield(self._tasks[key])

    def _forget_failed(self, key: bytes, task: asyncio.Task[list[Explanation]]) -> None:
        if task.cancelled() or task.exception():
            self._tasks.pop(key, None)

    async def _ask(self, step: StepRequest | KeptStepRequest) -> list[Explanation]:
        async with self._turn:
            question = "why" if isinstance(step, StepRequest) else "explain-kept"
            answer = (await EngineProcess(NICENESS).ask(question, step)).checked()
        return _explanations(answer, 2 if isinstance(step, StepRequest) and step.rules else 1)

    async def close(self) -> None:
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
