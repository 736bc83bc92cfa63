"""The origins of a program's layouts and collectives, from Shardy's passes, without compiling."""
