"""A load on a server: when requests come, what they ask for, what became of them, in figures.

`ridgeline loadtest` sends it to a server and `ridgeline simulate serving` to the scheduler on a
virtual clock; both note down the same stamps (`stamps.py`) and turn them into figures by the same
definitions (`summary.py`). Values in, values out: nothing is sent here, no file is read, no clock
is asked. Start reading at `workload.py`.
"""
