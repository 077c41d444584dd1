"""The tensors behind the blocks that `batching/` keeps the books of.

`pool.py` allocates them, copies blocks, and hands the keys and values of a sequence to another
engine and takes them back. Who holds which block is decided in `batching/blocks.py`, never here.
"""
