"""What Python runs before a program that is watched: the folder is in front of its `PYTHONPATH`."""
