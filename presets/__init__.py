"""Built-in presets as data: `parallelism/*.toml` (mesh and rules) and `models/*.toml` (architecture and training).

Beside them are the rates of chips, and what a field of a `config.json` is if it is missing: `transformers.json`, which
`python tests/oracle/defaults.py` writes.
"""
