"""How fast kernels are on the GPU at hand, beside what else computes the same.

    timing.py      medians of CUDA graph replays with a cold L2 cache; a copy of the same run
    rows.py        norms, gates, rotary, loss, optimizers, experts at sizes of real models
    attention.py   attention beside the library's kernels
    inference.py   linear layers with small weights, decode over a paged cache

Nothing here runs without a GPU. Start reading at `timing.py`.
"""
