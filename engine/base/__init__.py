"""Regular files, numbers formatted for people, and advice on known failures, for every room. No jax."""
