"""What kernels are written with: values, loops, memory and functions of LLVM IR."""
