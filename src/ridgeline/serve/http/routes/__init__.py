"""The endpoints, one file per family: from a request of `protocol/` to the engine and back.

What all replies have in common lies beside this folder; no route knows another.
"""
