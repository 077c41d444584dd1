"""The weights of a model as the engine multiplies them: packed, or of 8 or 4 bits.

`shrink` replaces the linear layers of a loaded model, `load_compressed` reads a compressed-tensors
checkpoint straight into the same layers, `calibrated_cache` its scales of keys and values;
`linears.py` has the layers, `torch_linears.py` the same on torch's operators, `choice.py` says
which of them this CPU gets. How they are multiplied is `kernels/`'s business. No quantisation that
needs calibration enters here: that is `compress/`.
"""

from ridgeline.serve.weights.compressed import is_compressed, load_compressed
from ridgeline.serve.weights.kv_scales import calibrated_cache
from ridgeline.serve.weights.layers import kernels_of
from ridgeline.serve.weights.linears import FrozenLinear
from ridgeline.serve.weights.shrink import shrink, weight_rows

__all__ = [
    "FrozenLinear",
    "calibrated_cache",
    "is_compressed",
    "kernels_of",
    "load_compressed",
    "shrink",
    "weight_rows",
]
