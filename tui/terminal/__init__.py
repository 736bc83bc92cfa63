"""The terminal: how it is taken and given back, and what may be written to it."""
