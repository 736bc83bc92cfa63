"""A preset compiled: its program, its memory, the digest of its state, and moving the state to another."""
