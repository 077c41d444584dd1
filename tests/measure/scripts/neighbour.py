"""Imported by `elsewhere.py`."""

FACTOR = 3.0
