"""The curves of a run for other tools: as CSV, for TensorBoard, for Weights & Biases."""
