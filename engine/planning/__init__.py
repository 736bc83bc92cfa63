"""What a preset would cost: by formula, and by the TPU compiler for a slice that is not attached."""
