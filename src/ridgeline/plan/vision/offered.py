"""What software offers for a network: layouts that it lets one choose, products in 8 bits.

It holds for what a plan tries by itself. Who asks for a setting is answered as it was asked.
"""

from __future__ import annotations

from ridgeline.cost.vision.work import is_processor
from ridgeline.hardware.facts import Device
from ridgeline.models.vision.network import VisionNetwork

PYTORCH = ("eager", "compile")
"""The software that is PyTorch itself, whose layout the caller chooses, and whose convolutions of 8
bits run on processors alone."""


def has_layouts(network: VisionNetwork, software: str) -> bool:
    """Whether channels may be moved last: where PyTorch runs convolutions.

    >>> from ridgeline.models.vision.presets import load_network
    >>> has_layouts(load_network("resnet50"), "eager")
    True
    >>> has_layouts(load_network("resnet50"), "tensorrt")
    False
    """
    return software in PYTORCH and any(one.kind == "conv" for one in network.operators)


def has_products(device: Device, software: str, precision: str) -> bool:
    """Whether the software multiplies in this precision on such a device.

    >>> from ridgeline.hardware import device
    >>> has_products(device("t4"), "tensorrt", "int8"), has_products(device("t4"), "eager", "int8")
    (True, False)
    """
    return precision != "int8" or software not in PYTORCH or is_processor(device)
