"""Presets compiled to programs: memory, inspection, digests, and resharding of the live state."""
