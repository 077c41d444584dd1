"""How numbers are rounded to few bits and read back, one file per format, bit by bit as specified.

Used by `compress/` (to round), `train/` (to train with rounded weights) and `serve/` (to read).
A format knows nothing of layers, calibration or files.
"""
