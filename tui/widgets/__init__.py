"""The widgets, one file for each region of the screen."""
