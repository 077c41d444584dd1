"""A simulator of training and inference programs that writes Kineto traces of known truth.

`program.py` says what a program is; `workloads.py` builds healthy ones of `operators.py` and
`faults.py` changes them; `run.py` executes a program on the `machine.py` (GPU, streams, links) with
`host.py`'s threads; `kineto.py` writes what the profiler would have; `truth.py` runs a program
again without each of its faults. Read in that order. Nothing here knows how Ridgeline judges a
trace.
"""
