"""A viewer's knowledge of a run. Nothing here draws."""
