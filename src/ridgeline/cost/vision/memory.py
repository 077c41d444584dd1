"""Memory of a device that trains a network for images, or runs one: bytes by part.

    weights       4 bytes a parameter, 2 where all is in 16 bits; batch norms' running statistics
    gradients     as wide as the weights; under data parallelism once more, in the buckets that are
                  reduced (DistributedDataParallel without `gradient_as_bucket_view`)
    optimizer     SGD with momentum 4 bytes a parameter, Adam 8
    casts         16-bit copies of the weights that autocast keeps until the backward pass is done
    activations   `kept_activations.py`, times the batch
    images        the batch itself and the one that is being copied beside it, as 32-bit numbers
    passing       gradients of the largest operator's input and output
    workspace     scratch memory of cuDNN and cuBLAS
    context       the CUDA context and its loaded kernels

At the peak, where the backward pass starts, all parts but the gradients are there; gradients of
late layers are written while activations of early ones still wait, so that the sum is close to the
peak and above it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ridgeline.cost.vision.kept_activations import (
    KeptActivation,
    Numerics,
    kept_activations,
    statistics_bytes,
)
from ridgeline.models.vision.network import VisionNetwork

Optimizer = Literal["sgd", "adamw"]
OPTIMIZER_BYTES = {"sgd": 4, "adamw": 8}
"""State of one parameter: a momentum, or two moments."""
WORKSPACE_BYTES = 256 * 2**20
"""Scratch memory that convolution algorithms and matrix products are given, as is usual."""
CONTEXT_BYTES = 500e6
"""A CUDA context with PyTorch's kernels loaded, as the driver reports it on current parts."""
CHANNELS = 3
_WEIGHT_BYTES = {"fp32": 4, "amp": 4, "sixteen": 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryNeed:
    """Bytes of one device by part, some of which grow with the batch."""

    fixed: dict[str, float]
    per_image: dict[str, float]

    def terms(self, batch: int) -> dict[str, float]:
        """Bytes by part with so many images."""
        names = dict.fromkeys([*self.fixed, *self.per_image])
        return {
            name: self.fixed.get(name, 0.0) + batch * self.per_image.get(name, 0.0)
            for name in names
        }

    def total(self, batch: int) -> float:
        """Bytes of all parts with so many images."""
        return sum(self.terms(batch).values())

    def largest_batch(self, capacity_bytes: float) -> int:
        """The most images that fit; 0 where none does.

        >>> MemoryNeed(fixed={"weights": 2e9}, per_image={"activations": 1e8}).largest_batch(8e9)
        60
        """
        left = capacity_bytes - sum(self.fixed.values())
        return max(0, int(left / sum(self.per_image.values())))


def training_memory(
    network: VisionNetwork,
    numerics: Numerics,
    *,
    optimizer: Optimizer,
    compiled: bool = False,
    num_devices: int = 1,
    on_gpu: bool = True,
) -> MemoryNeed:
    """What one device holds while it trains; each of several has a copy of the whole network."""
    parameters = network.parameters
    width = _WEIGHT_BYTES[numerics]
    kept = kept_activations(network, numerics, compiled=compiled)
    statistics, batch_statistics = statistics_bytes(network)
    copies = 2 if num_devices > 1 else 1
    return MemoryNeed(
        fixed={
            "weights": float(width * parameters + batch_statistics),
            "gradients": float(copies * width * parameters),
            "optimizer": float(OPTIMIZER_BYTES[optimizer] * parameters),
            "casts": 2.0 * parameters if numerics == "amp" else 0.0,
            "activations": float(batch_statistics),
            **_surroundings(on_gpu=on_gpu),
        },
        per_image={
            "activations": float(sum(one.image_bytes for one in kept) + statistics),
            "images": 2.0 * _image_bytes(network, 4),
            "passing": float(_largest_operator(network) * (4 if numerics == "fp32" else 2)),
        },
    )


def inference_memory(
    network: VisionNetwork, element_bytes: int, *, on_gpu: bool = True
) -> MemoryNeed:
    """What one device holds while it answers: at any time one operator, and one shortcut."""
    shortcut = max(
        (one.output_elements for one in network.operators if one.kind == "elementwise"), default=0
    )
    return MemoryNeed(
        fixed={
            "weights": float(element_bytes * network.parameters),
            **_surroundings(on_gpu=on_gpu),
        },
        per_image={
            "activations": float(element_bytes * (_largest_operator(network) + shortcut)),
            "images": float(_image_bytes(network, 4)),
        },
    )


def activation_layers(
    network: VisionNetwork, numerics: Numerics, *, compiled: bool, most: int
) -> list[KeptActivation]:
    """Where most of the kept activations lie, largest first."""
    kept = kept_activations(network, numerics, compiled=compiled)
    return sorted(kept, key=lambda one: -one.image_bytes)[:most]


def _surroundings(*, on_gpu: bool) -> dict[str, float]:
    if not on_gpu:
        return {}
    return {"workspace": float(WORKSPACE_BYTES), "context": CONTEXT_BYTES}


def _largest_operator(network: VisionNetwork) -> int:
    """Numbers that the operator with most of them reads and writes for one image.

    Sums and copies work on what others hold already; fused attention never writes its scores.
    """
    sizes = (
        one.input_elements + one.output_elements
        for one in network.operators
        if one.kind not in ("elementwise", "copy") and one.function != "attention"
    )
    return max(sizes, default=0)


def _image_bytes(network: VisionNetwork, element_bytes: int) -> int:
    height, width = network.image_size
    return CHANNELS * height * width * element_bytes
