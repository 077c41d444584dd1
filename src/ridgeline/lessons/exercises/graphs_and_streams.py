"""Exercise of the lesson graphs-and-streams: copy in, compute and copy out, chunk by chunk.

This is right, and takes 24 µs: one stream does one thing at a time. Let copies run beside kernels.
"""


def solve(chunks):
    return [(0, engine, chunk) for chunk in range(chunks) for engine in ("in", "compute", "out")]
