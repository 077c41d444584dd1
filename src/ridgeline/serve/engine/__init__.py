"""The loop that turns steps into tokens: messages in, steps of the scheduler, messages out.

`engine.py` is the loop; `start.py` builds what it drives, `memory.py` says where the memory goes,
`step_inputs.py` makes tensors of a step, `choice.py` hands its logits to whom they belong, and
`answers.py`, `searches.py`, `embeddings.py` keep what becomes of each request. `offline.py` and
`decode_bench.py` drive an engine without a server. What to
compute next is decided in `batching/`, how to pick a token in `sampling/`. One thread runs all of
it, and that thread must be the process's main one: a second thread that runs parallel torch
operators slows both (`docs/how-to/serve-a-model.md`).
"""
