"""The tensors of a model's files: which they are, and that they are complete."""
