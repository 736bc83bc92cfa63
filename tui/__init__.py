"""The UI process. Nothing in here imports jax: only one process may hold an accelerator, and it is the engine."""
