"""Many LoRA adapters over one model, mixed in one batch, loaded and evicted at run time.

`peft_files.py` examines what PEFT writes, in a process of its own (`examined.py`); `pairs.py` reads
the numbers, `linear.py` adds the low-rank products to one linear layer, `adapters.py` holds all
adapters together. Start reading at `adapters.py`.

Nothing here trains, merges weights into the model, or decides which request runs.
"""
