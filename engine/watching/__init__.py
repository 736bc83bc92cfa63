"""Behind `engine/watch.py`: a training loop that is not ours, described as ours are."""
