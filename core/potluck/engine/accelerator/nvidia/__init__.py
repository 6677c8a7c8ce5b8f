"""Our own kernels for NVIDIA GPUs, compiled for the GPU at hand by the compiler that torch brings along."""
