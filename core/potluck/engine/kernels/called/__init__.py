"""Kernels as they are called: with tensors, checked."""
