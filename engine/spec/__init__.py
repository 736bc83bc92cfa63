"""Requests of the user: the config of a run and its model, presets and their files, TPU slices. No jax."""
