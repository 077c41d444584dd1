"""Continuous batching as pure logic: requests, sequences, KV blocks, prefix cache, scheduler.

`serve/` drives it for real and `plan/` in simulation: the same code, so a forecast is of the very
scheduler that serves. Values in, values out: no torch, no threads, and no clock but the `now` that
callers pass. Start reading at `sequence.py`, then `scheduler.py`; `blocks.py` keeps the KV blocks,
`pool.py` finds prompts that were seen before, `policies.py` says who goes first and when.
`ahead.py` does many steps at once in simulation, and `load/` is what is sent to a server and what
became of it. Of several engines, `routing.py` says which one gets a request and `scaling/` how many
there are.
"""
