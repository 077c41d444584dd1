"""A run that outlives what happens to it: dead ranks, lost nodes, hangs, preemption, bad batches.

    events.py     what happened to a run and when, appended to `events.jsonl`
    goodput.py    where the wall time went, from those events
    shrink.py     the layout on fewer ranks
    signals.py    a rank is asked to stop: SIGTERM, or a file in the run's folder
    stop_file.py  that file; skipped.py: the batches that are left out
    agreement.py  what every rank must decide alike, agreed one step late
    spikes.py     is this loss a spike
    watchdog.py   no rank moves: who holds the others up, and in which call
    guard.py      the above, as the loop asks for it after every step; vigil.py: for the session
    calls.py      the call that a rank is in

torchrun ends and starts the processes (`start.py`); checkpoints are `checkpoint/`'s. What may not
enter: how a model is laid out, how a checkpoint is written.
"""
