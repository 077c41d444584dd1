"""A run that outlives what happens to it: dead ranks, lost nodes, hangs, preemption, bad batches.

    events.py     what happened to a run and when; the batches that are left out
    goodput.py    where the wall time went, from those events
    stop.py       how a rank is asked to stop: SIGTERM, or a file in the run's folder
    guard.py      go on, stop or go back: decided after every step, by all ranks alike
    watchdog.py   no rank moves: who holds the others up, and in which call
    vigil.py      all of it, put together for the session

torchrun ends and starts the processes (`start.py`); checkpoints are `checkpoint/`'s. What may not
enter: how a model is laid out, how a checkpoint is written.
"""
