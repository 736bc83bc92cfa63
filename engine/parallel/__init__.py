"""Device meshes, and how a preset's rules become shardings on them."""
