"""Where the engine's own code is installed: what is in there is nobody else's."""

from pathlib import Path

ENGINE = Path(__file__).parents[1]
