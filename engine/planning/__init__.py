"""Costs of presets: by formula, by trace, and by the compiler for devices that are not attached."""
