"""Any Hugging Face causal LM over a KV cache in blocks, with no model re-written.

`attention.py` puts our paged attention behind transformers' own attention interface; `loaded.py`
loads a model and `trial.py` checks at load that it computes the same over blocks as by itself,
because a family whose attention does not pass through the interface would be wrong without an
error. `batch.py` makes tensors of a step, `fused.py`, `direct.py` and `graphs.py` make it fast. No
request and no sampling here.
"""
