"""The loop: batches, steps, switches between two of them, and what is reported."""
