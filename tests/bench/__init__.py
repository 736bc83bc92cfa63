"""Speeds of the real programs against plain ones, as ratios. Timings pass or fail nothing: no part of the tests."""
