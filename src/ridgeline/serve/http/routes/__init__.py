"""The endpoints, one file per family: from a request of `protocol/` to the engine and back.

What is general about answering lies beside this folder; no route knows another.
"""
