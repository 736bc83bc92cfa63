"""Costs of presets: traced, and compiled for devices that are not attached."""
