"""The engine: one process that holds the devices, trains, and switches presets between two steps."""
