"""Tests of `engine/planning` and of `shardtui plan`."""
