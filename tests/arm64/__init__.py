"""The kernels and the guide on emulated arm64 processors."""
