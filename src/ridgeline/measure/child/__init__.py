"""Lives inside the measured process: nothing here may change what the script computes.

    attach.py      the entry point that the bootstrap calls once torch is imported
    clock.py       exclusive time per phase from a list of marks
    guard.py       where an error of our own ends
    anatomy.py     what a module consists of, whatever its class has redefined
    agent.py       the state machine of steps, and the conversation with the conductor
    hooks.py       where a step is intercepted; `ridgeline/patches.py` lists what is replaced
    standing.py    where the script stands before its first step
    terminal.py    how large the user's terminal is
    points.py      the hook points that techniques use
    fetch_times.py how long making a batch takes, workers included
    facts.py       reading models, optimizers, loaders and switches
    heap.py        what the C heap holds
    operators.py   a dispatch mode: operators, FLOPs, bytes, memory by category, sync points
    profiler.py    a short window under torch.profiler
    sampler.py     which line the host is on

A module here is imported in somebody else's process: keep imports few and side effects none.
"""
