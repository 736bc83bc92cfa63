"""The way into the `shardtui` command: a splash first, and only then what takes a while to import."""

import gc
import sys

from .terminal import splash
from .terminal.exit_codes import INTERRUPTED


def main() -> int:
    try:
        return _with_splash() if _opens_ui(sys.argv[1:]) and splash.fits() else _command()
    except KeyboardInterrupt:
        return INTERRUPTED


def _with_splash() -> int:
    splash.show()
    gc.disable()  # nothing of what is imported is garbage; the UI enables it once it has read the run's history
    try:
        return _command()
    finally:
        splash.erase()


def _command() -> int:
    from .cli.main import main

    return main()


def _opens_ui(arguments: list[str]) -> bool:
    """As far as a glance can tell."""
    named = not arguments or arguments[0].startswith("-") or arguments[0] in ("run", "attach")
    return named and not {"-h", "--help", "--version"}.intersection(arguments)


if __name__ == "__main__":
    sys.exit(main())
