"""Many LoRA adapters over one model, mixed in one batch, loaded and evicted at run time.

`peft_files.py` reads what PEFT writes, `linear.py` adds the low-rank products to one linear layer,
`adapters.py` holds them all together. Start reading at `adapters.py`.

Nothing here trains, merges weights into the model, or decides which request runs.
"""
