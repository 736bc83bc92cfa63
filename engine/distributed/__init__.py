"""The processes that train one run, and how they agree."""
