"""Copies of the state in the memory of this host and of another one, from which the next epoch resumes."""
