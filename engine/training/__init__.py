"""The training loop: batches, steps, switches between steps, and their reports."""
