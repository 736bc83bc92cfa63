"""Costs of presets: rough, traced, and compiled for devices that are not attached."""
