"""The processes that train one run together, and what they exchange."""
