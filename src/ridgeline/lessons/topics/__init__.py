"""The lessons, one file each; `shape.py`, one room above, says what a file must define."""
