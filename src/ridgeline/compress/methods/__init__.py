"""How a weight matrix is quantised, one file each; `rtn.py` has what all of them hand back.

A method is `quantise(weight, scheme, seen, mask) -> Rounded`, and says in `NEEDS` what calibration
has to gather. AWQ and SmoothQuant also have `scale(weights, seen, scheme, channels)`: what the
activations that some matrices share are divided by before these are quantised; `../blocks.py` moves
it. Nothing here reads or writes files, or knows of blocks.
"""
