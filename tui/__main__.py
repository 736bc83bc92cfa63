"""The entry point of the `shardtui` command: shows a splash before it imports what takes a while."""

import gc
import sys

from .terminal import INTERRUPTED, splash


def main() -> int:
    try:
        return _with_splash() if _opens_ui(sys.argv[1:]) and splash.fits() else _command()
    except KeyboardInterrupt:
        return INTERRUPTED


def _with_splash() -> int:
    splash.show()
    gc.disable()  # imports make no garbage; the UI enables it once it has read the run's history
    try:
        return _command()
    finally:
        splash.erase()


def _command() -> int:
    from .cli.main import main

    return main()


def _opens_ui(arguments: list[str]) -> bool:
    """Guesses from the first argument whether the command opens the UI: the parser is not imported yet."""
    named = not arguments or arguments[0].startswith("-") or arguments[0] in ("run", "attach", "replay")
    return named and not {"-h", "--help", "--version"}.intersection(arguments)


if __name__ == "__main__":
    sys.exit(main())
