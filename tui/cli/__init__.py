"""The commands, one file each, and the JSON that they print."""
