"""A model read in parts, so that one larger than memory can be walked through.

    checkpoint.py    its tensors, one at a time; skeleton.py: the model without them
    matrices.py      the weight matrices of a block; loaded_block.py: a block in memory
    flow.py          activations from block to block
    finished.py      one block that is done, on disk; journal.py: all of them, until they are saved
    allocation.py    freed weights go back to the system at once

What may not enter: what is done to a block while it is here (`../blocks.py`).
"""
