"""The name under which a measurement knows the device it ran on."""

from __future__ import annotations

import torch


def device_name(device: torch.device) -> str:
    """A GPU's marketing name; empty for the CPU, whose name the machine has."""
    return str(torch.cuda.get_device_name(device)) if device.type == "cuda" else ""
