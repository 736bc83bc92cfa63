"""Analyses compiled HLO text and array layouts: collectives, matrix products, findings. No jax."""
