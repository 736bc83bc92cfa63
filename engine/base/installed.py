"""Where the engine's own code is installed. Tracebacks use it to find the user's own code."""

from pathlib import Path

ENGINE = Path(__file__).parents[1]
"""The directory of the package `shardtui.engine`."""
CONSTRAINTS = ENGINE / "parallel"
"""The modules by which a model shards an activation. The source line of interest is their caller's."""
