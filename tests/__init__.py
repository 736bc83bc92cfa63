"""Tests, one folder per package of the engine and one for the UI; programs that measure are in bench and long."""
