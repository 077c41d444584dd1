"""Frames through a graph of stages as pure logic: edges that hold or drop, joins, deadlines, fates.

`realtime/` drives it with real stages and clocks and `plan/realtime/` in simulation: the same code,
so a what-if is of the very pipeline that runs. Values in, values out: no torch, no threads, and no
clock but the `now` that callers pass. Start reading at `flow.py`.
"""
