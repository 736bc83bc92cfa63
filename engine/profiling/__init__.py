"""Where the time of a step went: traces of the profiler, joined with the compiled program."""
