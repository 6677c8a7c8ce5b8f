"""From stored tensors to the memory that a stage computes with."""
