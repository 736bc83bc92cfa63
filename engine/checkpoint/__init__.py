"""Checkpoints: directory, manifest, saving and loading."""
