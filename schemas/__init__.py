"""JSON Schemas of what the commands print and of the files that they read: docs/json.md. Made by docs/schemas.py."""
