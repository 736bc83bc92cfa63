"""What the process says to its caller."""

FINE, FAILED, REFUSED, INTERRUPTED = 0, 1, 2, 130
"""`REFUSED`: nothing was done, for what was asked cannot be. `INTERRUPTED`: by Ctrl-C, as shells have it."""
