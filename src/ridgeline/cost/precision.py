"""What a lower precision gains: least time of a pass in one arithmetic over that in another.

Products and attention speed up by the peaks' ratio where they are compute-bound, everything else
by the bytes that shrink; so the whole gains less than the peaks promise (Amdahl). fp8 leaves
attention and all that is not a product in 16 bits. Casts are not counted: `products.py` has them.
"""

from __future__ import annotations

from ridgeline.cost.operator_roofline import place_operators
from ridgeline.cost.operators import Phase, model_operators
from ridgeline.hardware.facts import Device
from ridgeline.models.spec import ModelSpec


def precision_speedup(
    model: ModelSpec,
    device: Device,
    *,
    before: str,
    after: str,
    seq: int,
    batch: int,
    phase: Phase = "train",
) -> float:
    """At the roofline, without launch costs.

    >>> from ridgeline.hardware import device
    >>> from ridgeline.models import load_model
    >>> llama, h100 = load_model("llama-3-8b"), device("h100")
    >>> gain = precision_speedup(llama, h100, before="bf16", after="fp8", seq=4096, batch=1)
    >>> round(gain, 2)
    1.73
    """
    seconds = [
        place_operators(model_operators(model, seq, batch, 1, phase, dtype), device, dtype).seconds
        for dtype in (before, after)
    ]
    return seconds[0] / seconds[1]
