"""The loop that turns steps into tokens: messages in, steps of the scheduler, messages out.

`engine.py` is the loop; `admission.py` makes of a message sequences that the scheduler has queued,
`requests.py` keeps the books of what is under way, `outcomes.py` makes of a step's logits what
requests are sent (`step_rows.py`: whose each row is), and `attempt.py` finds the request at which a
step fails. `start.py` builds what the loop drives, `memory.py` says where the memory goes.
`offline.py` and `decode_bench.py` drive an engine without a server. What to compute next is decided
in `batching/`, how to pick a token in `sampling/`. One thread runs all of it, and that thread must
be the process's main one: a second thread that runs parallel torch operators slows both
(`docs/how-to/serve-a-model.md`).
"""
