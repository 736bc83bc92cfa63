"""Why values and collectives of a program are laid out as they are, from Shardy's passes, without compiling."""
