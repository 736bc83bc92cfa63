"""Meshes of devices, and how a preset's rules become shardings on them."""
