"""What engine and viewers say to each other, and the run directory in which they meet. No jax."""
