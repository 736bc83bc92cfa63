"""What was asked for: the run and its model, presets and their files, slices of TPU chips. No jax."""
