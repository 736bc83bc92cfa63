"""Textual's driver, which leaves nothing of the splash, counts what it writes, and outlives what is typed in another
encoding."""

from typing import ClassVar

from textual.drivers.linux_driver import LinuxDriver

from . import splash


class Driver(LinuxDriver):
    written: ClassVar[int] = 0
    """Bytes so far."""

    def write(self, data: str) -> None:
        Driver.written += len(data.encode())
        super().write(data)

    def start_application_mode(self) -> None:
        splash.erase()
        super().start_application_mode()

    def run_input_thread(self) -> None:
        """Bytes that are not UTF-8 are lost, with what was read beside them."""
        while True:
            try:
                return super().run_input_thread()
            except UnicodeDecodeError:
                continue
