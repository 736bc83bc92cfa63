"""The processes that train one run together, and how they agree on values."""
