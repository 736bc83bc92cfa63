"""Checks a machine before anyone trains on it."""
