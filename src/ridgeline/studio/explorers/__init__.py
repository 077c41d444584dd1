"""The explorers: one file each, found by being there. How one is added: see the room's `__init__`.

Nothing is computed here. An explorer declares its inputs, names the command, calls the function
that the command calls, and joins words and blocks from the answer.
"""
