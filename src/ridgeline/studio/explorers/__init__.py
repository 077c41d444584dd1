"""The explorers are one file each, found by being there; the room's `__init__` says how.

Nothing is computed here. An explorer declares its inputs, names the command, calls the function
that the command calls, and joins words and blocks from the answer.
"""
