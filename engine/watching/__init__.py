"""Behind `engine/watch.py`: describes and reports an external training loop."""
