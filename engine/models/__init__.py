"""What is trained: the built-in decoder or a model of the user's, and one step of it."""
