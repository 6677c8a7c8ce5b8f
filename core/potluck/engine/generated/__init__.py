"""Layers by kernels that are generated for this computer's processor, where there are any for them."""
