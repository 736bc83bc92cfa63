"""How a program ends: Python tells the functions that it calls at its exit nothing of it."""

import functools
import sys
from opcode import opname
from typing import Any, NoReturn

from .jitted import UNSEEN


class ExitStatus:
    """Notes the status that the program gives to `sys.exit`. It has to be made within the program."""

    def __init__(self) -> None:
        self._status: Any = None
        self._frame = sys._getframe()
        while self._frame.f_back:
            self._frame = self._frame.f_back
        real = sys.exit

        @functools.wraps(real)
        def exit(*status: Any) -> NoReturn:
            self._status = next(iter(status), None)
            with UNSEEN:
                real(*status)

        sys.exit = exit

    @property
    def error(self) -> BaseException | None:
        """What ended the program, once it has ended: an exception, or an exit with a status other than 0; else None."""
        code, at = self._frame.f_code.co_code, self._frame.f_lasti
        has_returned = opname[code[at]].startswith("RETURN")  # and any exit that it asked for was caught
        asked = None if has_returned or self._status in (None, 0) else SystemExit(self._status)
        return getattr(sys, "last_value", asked)
