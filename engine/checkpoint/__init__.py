"""Checkpoints: their directory, their manifest, and when they are written and read."""
