"""The messages between engine and viewers, and the run directory that both use. No jax."""
