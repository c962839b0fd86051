"""What compiled CUDA kernels take of a device, read from their machine code without a GPU."""
