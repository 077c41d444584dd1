"""The tensors behind the blocks that `batching/` keeps the books of.

`form.py` says how keys and values are kept; `pool.py` allocates them, copies blocks, and hands
those of a sequence to another engine and takes them back. Who holds which block is decided in
`batching/blocks.py`, never here.
"""
