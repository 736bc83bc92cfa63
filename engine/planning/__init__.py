"""What a preset would cost: by formula, and by the compiler of a slice that nobody has to hold."""
