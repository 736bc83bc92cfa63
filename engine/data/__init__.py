"""The data: where the tokens come from, and the batch of each step."""
