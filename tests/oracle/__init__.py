"""Answers of `transformers` for tiny models of all architectures."""
