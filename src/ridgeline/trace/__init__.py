"""Read profiler traces and say where the time went: intervals, waits, overlap, paths.

A trace becomes numpy columns (`columns.py`), whatever wrote it: Kineto JSON (`kineto.py`),
Nsight sqlite, memory snapshots. Every question is one function in one file that takes a `Trace`
and returns a record; `intervals.py` is the arithmetic under all of them. No torch in here, no
printing, no drawing: `report/` draws the records, `cli/trace.py` shows them.
Start reading at `columns.py`, then `intervals.py`, then `summary.py`.
"""
