"""What a viewer knows of a run, and what follows from it. Nothing here draws."""
