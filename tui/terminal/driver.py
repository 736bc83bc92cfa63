"""Textual's driver, changed to erase the splash, to count the bytes written, and to survive input that is not UTF-8."""

from typing import ClassVar

from textual.drivers.linux_driver import LinuxDriver

from . import splash


class Driver(LinuxDriver):
    """The driver of the UI's terminal."""

    written: ClassVar[int] = 0
    """Bytes written to the terminal since the process started."""

    def write(self, data: str) -> None:
        Driver.written += len(data.encode())
        super().write(data)

    def start_application_mode(self) -> None:
        splash.erase()
        super().start_application_mode()

    def run_input_thread(self) -> None:
        """Continues after input that is not UTF-8, which is lost with what was read along with it."""
        while True:
            try:
                return super().run_input_thread()
            except UnicodeDecodeError:
                continue
