"""Lives inside the measured process: nothing here may change what the script computes.

    attach.py        the entry point that the bootstrap calls once torch is imported
    guard.py         where an error of our own ends
    hooks.py         where a step is intercepted, and loader_hooks.py where a batch is waited for;
                     `ridgeline/patches.toml` lists what is replaced
    agent.py         receives what the hooks see: the state machine of steps
    step_ends.py     which event ends a training step; step_thread.py in which thread steps are
    clock.py         exclusive time per phase from a list of marks
    conversation.py  counts steps, reports to the conductor, waits for its orders
    instruments.py   what looks closer for a few steps: operators.py, live_memory.py, profiler.py,
                     sampler.py
    habits.py        what is counted of the loop; saved_files.py times what is saved
    watched.py       what is remembered of models, optimizers, loaders and habits
    facts.py         reading them, and the script's switches, into records
    usage.py         cores, kernel, page faults, compilations and memory of the process
    points.py        the hook points that techniques use, edits of arguments among them
    anatomy.py       what a module consists of, whatever its class has redefined
    inputs.py        what a model is fed; seen_losses.py what came of it
    sites.py         tells the user's code from libraries
    fetch_times.py   how long making a batch takes, workers included
    standing.py      where the script stands before its first step, and in a long one
    seeds.py         other seeds; shake.py disturbs weights by as much as rounding

A module here is imported in somebody else's process: keep imports few and side effects none.
"""
