"""Who calls the stages of a pipeline: one thread, a thread per stage, a process per stage.

All three drive the same `FrameFlow` and the same sensors; they differ in where a stage's code runs
and how its inputs come there:

    inline.py      one thread, deepest stage first
    threads.py     a thread per stage; values are passed on as they are
    processes.py   a process per stage; arrays and tensors lie in memory that all of them share

    sensors.py     reading sensors at their rates, by absolute times
    dispatch.py    the flow under a lock, where several threads drive it
    calls.py       one call of a stage, measured; on a GPU: `streams.py`
    arenas.py, payloads.py, worker.py    what processes need

What may not enter: whether a frame waits, is dropped or is late. `frames/` decides that.
"""
