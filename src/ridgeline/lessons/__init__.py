"""The lessons hold a bad kernel beside a good one, and what is counted beside what was foretold.

    shape.py          what a lesson is made of, and how a learner's file is marked
    conduct.py        finds lessons and exercises, and starts the process below
    process.py        the process that runs one lesson, or marks one file
    triton_counts.py  what Triton launches touch, seen by the interpreter (from `kernels/check`)
    warp_counts.py    bank conflicts, barriers and paths of warps, seen by numba's CUDA simulator
    cache_counts.py   misses of a cache, from the order of addresses
    memory_ladder.cpp a chase and a walk through this machine's memory
    topics/           the lessons, one file each, found by being there
    exercises/        what a learner starts from, under the lesson's name
    cuda/             the same kernels in CUDA C++, for three of them

Start reading at `topics/coalescing.py`. A lesson predicts by counting or by `cost/`, never by what
it counted. It is a room of its own, above `cost/` and `kernels/`, because it holds the one against
the other; nothing here is needed by any other room, and no kernel of a product stands here.
"""
