"""See what really happens: clocks, phases, and the interception of unmodified scripts.

The script runs as its own process, exactly as its author would run it; the only difference is
one environment variable and one folder in front of `PYTHONPATH`:

    conductor.py   (parent)  starts the script, says how many steps to run, and with what
    wire.py                  the messages that the two exchange
    bootstrap/     (child)   `sitecustomize` that waits for `import torch`
    child/         (child)   hooks, phase clock, instruments, techniques' hook points
    profile.py     (parent)  turns what came back into a `StepProfile`
    statistics.py            intervals, steadiness and change points over step times
    probe.py                 the real peaks of this machine (kernels in microbenchmarks.py)
    comparison.py            two records side by side; history.py: many over time

What may not enter: cost models of whole runs, advice, and any single technique.
Start reading at `conductor.py`.
"""
