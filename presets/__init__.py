"""Built-in presets as data: `parallelism/*.toml` (mesh and rules) and `models/*.toml` (architecture and training)."""
