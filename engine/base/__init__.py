"""What every room may use: regular files, numbers formatted for people, and advice on known failures. No jax."""
