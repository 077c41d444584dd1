"""How a weight matrix is rounded, one file each.

A method is `quantise(weight, scheme, seen, mask) -> Rounded`, and says in `NEEDS` what calibration
has to gather. AWQ and SmoothQuant also have `scale(weights, seen, scheme, channels)`: what the
inputs that some matrices share are divided by before these are rounded; `compress/rescaling.py`
moves it. Nothing here reads or writes files, or knows of blocks.
"""
