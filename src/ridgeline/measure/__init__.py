"""See what really happens: clocks, phases, and the interception of unmodified scripts.

The script runs as its own process, exactly as its author would run it; the only difference is
one environment variable and one folder in front of `PYTHONPATH`:

    live/          (parent)  starts the script, says how many steps to run, and with what;
                             turns what came back into a `StepProfile`
    wire.py                  the messages that the two exchange
    bootstrap/     (child)   `sitecustomize` that waits for `import torch`
    child/         (child)   hooks, phase clock, instruments, techniques' hook points
    guard/                   keeps the user's files and processes as they were meanwhile
    statistics/              intervals, steadiness, change points: no process, no file
    compare/                 two records side by side, or many over time
    bisect/                  the commit that made a script slower
    network/                 the operators of any vision model, counted without weights
    probe.py                 the real peaks of this machine (kernels in microbenchmarks.py)

What may not enter: cost models of whole runs, advice, and any single technique.
Start reading at `live/conductor.py`.
"""
