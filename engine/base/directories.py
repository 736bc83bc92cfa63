"""The directories of the engine's code, and of the user, by the XDG specification on every system.

Those of the user raise UserError if their path is not text: libraries and files of a run could not hold it.
"""

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from .encoding import text_path
from .user_error import UserError

if TYPE_CHECKING:
    from platformdirs.unix import Unix

ENGINE = Path(__file__).parents[1]


def config_directory() -> Path:
    return text_path(_directories().user_config_path)


def state_directory() -> Path:
    return text_path(_directories().user_state_path)


def cache_directory() -> Path:
    return text_path(_directories().user_cache_path)


def expanded(path: str) -> Path:
    """Returns a path with `~` as the home directory. Raises UserError if there is none, as of an unknown user."""
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise UserError(f"{path}: there is no such home directory: write the whole path") from error


@cache
def _directories() -> "Unix":
    """Ignores a variable that is empty or relative, as the specification requires."""
    from platformdirs.unix import Unix  # some milliseconds, which `--help` need not wait for

    return Unix("shardtui", appauthor=False)
