"""Kernels, one file each: what it computes in words and formulas, a PyTorch reference, wrappers.

`cpu/` holds C++ sources, built once per machine at first use; `triton/` holds GPU kernels, which
the Triton interpreter runs on the CPU in tests. Each wrapper picks by the device of its tensors;
the reference is what all of them are tested against and may be slow. A few are plain PyTorch, in
names of their own: a patch writes their file into a user's script. Nothing of models, caches'
bookkeeping or servers enters here.
"""
