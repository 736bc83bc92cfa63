"""What the text of a compiled program or a layout says. No jax."""
