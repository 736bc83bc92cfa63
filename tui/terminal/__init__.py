"""The terminal: how it is taken over and restored, and what may be written to it."""
