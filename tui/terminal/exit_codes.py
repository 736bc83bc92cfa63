"""Exit codes of the command."""

FINE, FAILED, REFUSED, INTERRUPTED = 0, 1, 2, 130
"""`REFUSED`: nothing was done, because the request is invalid. `INTERRUPTED`: by Ctrl-C, as shells report it."""
