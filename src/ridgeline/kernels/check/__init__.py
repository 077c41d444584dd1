"""A doctor for Triton kernels, for which no GPU is needed.

    conduct.py       starts the two processes below, and puts their answers together
    interpreted.py   the process that runs a file's `example()` under Triton's interpreter
    watching.py      every load, store and atomic of a launch, and the order of its programs
    seen.py          what is kept of each
    judging.py       what follows from them: bounds, unwritten outputs, bytes, sectors
    races.py         what is touched without an order, between programs and within one
    bfloat16.py      makes the interpreter compute rightly in bfloat16 and tf32
    compiled.py      the process that compiles the launches for architectures
    banks.py         conflicts in shared memory, by the layouts of compiled code
    examples/        launches of Ridgeline's own kernels

Start reading at `watching.py`. Nothing here knows a particular kernel.
"""
