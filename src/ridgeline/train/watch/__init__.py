"""What is seen of a run while it runs.

    phases.py            where each step of this rank went
    interval.py          a line per logged step, brought together over the ranks, on disk at once
    expected.py          the model's FLOPs, the device's peak, the memory that theory predicts
    stragglers.py        which rank, in which phase, the others wait for
    drift.py             which phase has become slower than it was at first
    profiler_windows.py  traces of chosen steps, or of the next one on a signal
    scaling.py           tokens per second against a run of one worker

What may not enter: anything that changes what is computed. The terminal's view of a log is drawn in
`report/views/train.py`.
"""
