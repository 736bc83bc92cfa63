"""Faults injected into the real programs, counted in tables. Not part of the test suite: too long for it."""
