"""What every room may use: files, figures in words, and what known failures mean. No jax."""
