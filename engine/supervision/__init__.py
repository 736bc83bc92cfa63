"""Starts an engine again on the processes that are left, once one is lost; needs no jax."""
