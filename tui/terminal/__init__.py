"""The terminal: how it is taken over and restored, what may be written to it, and exit codes."""

FINE, FAILED, REFUSED, INTERRUPTED = 0, 1, 2, 130
"""Exit codes. `REFUSED`: nothing was done, because the request is invalid. `INTERRUPTED`: by Ctrl-C, as in shells."""
