"""The blocks that layers are made of, in torch: the definition of what generated kernels compute."""
