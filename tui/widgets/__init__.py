"""The widgets, one file for each region that is seen on screen."""
