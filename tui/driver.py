"""Textual's driver, which outlives what is typed or pasted in another encoding."""

from textual.drivers.linux_driver import LinuxDriver


class Driver(LinuxDriver):
    def run_input_thread(self) -> None:
        """Bytes that are not UTF-8 are lost, with what was read beside them."""
        while True:
            try:
                return super().run_input_thread()
            except UnicodeDecodeError:
                continue
