"""The model, built in or the user's, and its train step."""
