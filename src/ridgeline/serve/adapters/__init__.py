"""Many LoRA adapters over one model, mixed in one batch, loaded and evicted at run time.

`examined.py` has what PEFT writes examined (`checkpoints/adapters.py`) in a process of its own;
`linear.py` adds the low-rank matmuls to one linear layer, `adapters.py` holds all adapters
together. Start reading at `adapters.py`.

Nothing here trains, merges weights into the model, or decides which request runs.
"""
