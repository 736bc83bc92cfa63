"""Tests of `engine/watching` and `engine/watch.py`."""
