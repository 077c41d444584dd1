"""The work of kernels, from the shapes in a trace: FLOPs, bytes, and the roof above them."""
