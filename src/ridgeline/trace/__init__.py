"""Read profiler traces and say where the time went: intervals, waits, overlap, paths.

A trace becomes numpy columns (`columns.py`), whatever wrote it (`formats/`, `load.py`). Every
question is one function in one file that takes a `Trace` and returns a record:

    time/            where the time went: summary, idle, launch, sync, kernels, operators, steps
    roofline/        the work of kernels, from the shapes of operators
    communication/   collectives, overlap with compute, matching of ranks, stragglers
    critical_path/   what made the run as long as it was, what-if, and what a cure would save
    memory/          allocations over time, growth, memory snapshots
    pictures/        timeline, flame graph, annotated trace for Perfetto
    compare/         one run against another

Every question stands on the files beside them: `intervals.py` is the arithmetic of busy and idle,
`windows.py` the part of a trace that is asked about, `host_calls.py` what the host did at a moment
and launched, `waits.py` what streams and threads waited for, `kernel_names.py` what a kernel's name
tells. No torch in here, no printing, no drawing: `report/` draws the records, `cli/trace.py` shows
them. Start reading at `columns.py`, then `intervals.py`, then `time/summary.py`.
"""
