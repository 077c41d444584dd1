"""Kernels in Gluon, Triton's lower level, for what an architecture does otherwise than others.

`hopper_attention.py` is the forward of FlashAttention with a warp that loads and eight that
multiply. Gluon has no interpreter: these kernels are compiled ahead of time by tests, and compared
and timed where there is a GPU. No operator takes them: on an H200 the forward is right and slower
than the one in Triton (`docs/results/gpu.md`).
"""
