"""The GPUs of a node as HAMi notes them in an annotation, which says what pods may have of each.

Source: HAMi, `pkg/util/util.go` (EncodeNodeDevices and DecodeNodeDevices), 2.0 to 2.6.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from ridgeline.queue.readers.kube_pods import HAMI_CORES, HAMI_MEMORY
from ridgeline.queue.readers.kube_sections import section

HAMI_NOTES = ("hami.io/node-nvidia-register", "4pd.io/node-nvidia-register")
_LISTED = re.compile(r"GPU-[\w-]+,(\d+),(\d+),(\d+)")
"""A GPU as older releases write it: `UUID,10,46068,100,...:`."""
_OBJECT = re.compile(r"\{[^{}]*\}")
_FIELDS = {name: re.compile(rf'"{name}":\s*(\d+)') for name in ("count", "devmem", "devcore")}


class HamiGpu(NamedTuple):
    """What pods may have of one GPU."""

    shared_by: int
    """How many pods may share it."""
    mebibytes: int
    cores: int
    """Hundredths of its compute."""


def hami_gpus(node: dict[str, Any]) -> list[HamiGpu]:
    """The GPUs of a node; none where HAMi has noted none."""
    notes = section(node, "metadata", "annotations")
    noted = str(next((notes[name] for name in HAMI_NOTES if name in notes), ""))
    listed = [HamiGpu(*map(int, one)) for one in _LISTED.findall(noted)]
    return listed or [_gpu(one) for one in _OBJECT.findall(noted) if '"count"' in one]


def hami_amounts(node: dict[str, Any]) -> dict[str, int]:
    """Memory and compute of a node's GPUs together, by the names under which pods ask for them."""
    gpus = hami_gpus(node)
    amounts = {
        HAMI_MEMORY: sum(one.mebibytes for one in gpus),
        HAMI_CORES: sum(one.cores for one in gpus),
    }
    return {name: amount for name, amount in amounts.items() if amount}


def _gpu(text: str) -> HamiGpu:
    found = {name: pattern.search(text) for name, pattern in _FIELDS.items()}
    return HamiGpu(*(int(one[1]) if one else 0 for one in found.values()))
