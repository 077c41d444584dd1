"""GPU kernels in Triton, behind the wrappers of `kernels/`.

`paged_attention.py` stores keys and values and attends over them, `linear_int8.py` and
`linear_int4.py` multiply with weights that stay small in memory. The Triton interpreter runs all of
them on the CPU in tests (`TRITON_INTERPRET=1`), and tests compile them for sm_80 and sm_90.

Nothing here waits for the device: whatever decides about a launch is known on the host, so that
CUDA graphs can hold it. No model, no scheduler, no fallback to PyTorch enters here.
"""
