"""What Triton launches touch, seen by the interpreter: programs, lanes, bytes, sectors, requests.

A request is what 32 lanes ask for by one load or store; a sector is 32 bytes of memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ridgeline.kernels.check.judging import SECTOR_BYTES, launch_record, request_sectors
from ridgeline.kernels.check.races import races
from ridgeline.kernels.check.seen import Access, SeenLaunch
from ridgeline.kernels.check.watching import LaunchWatch

_WATCH = LaunchWatch()
_FROM_ELSEWHERE: list[torch.Tensor] = []
"""Results of calls that launched kernels, none of which wrote them."""
_PUT_ASIDE: list[torch.Tensor] = []
"""Tensors given to calls that launched kernels, none of which read them."""
_LANES = 32


def install() -> None:
    """Watch every launch of this process."""
    _WATCH.install()


@dataclass(frozen=True, slots=True)
class Launches:
    """The launches of one call, and sums over them."""

    seen: Sequence[SeenLaunch]

    @property
    def accesses(self) -> list[Access]:
        """Every load, store and atomic."""
        return [access for one in self.seen for access in one.accesses]

    @property
    def programs(self) -> int:
        """Programs of all launches."""
        return sum(one.programs for one in self.seen)

    @property
    def moved_bytes(self) -> int:
        """Bytes of all requests, each as often as it was asked for."""
        records = [launch_record(one) for one in self.seen]
        return sum(one.loaded_bytes + one.stored_bytes for one in records)

    @property
    def loaded_bytes(self) -> int:
        """Bytes of loads alone."""
        return sum(launch_record(one).loaded_bytes for one in self.seen)

    @property
    def idle_lanes(self) -> int:
        """Lanes of stores that a mask switches off."""
        stores = [one for one in self.accesses if one.kind == "store"]
        return sum(int(np.size(one.active) - one.active.sum()) for one in stores)

    @property
    def sectors(self) -> int:
        """Sectors of every request of whole warps."""
        return sum(request_sectors(one)[1] for one in self.accesses)

    def sectors_of(self, kind: str) -> float:
        """Sectors of one request on average, of loads or of stores."""
        wide = [one for one in self.accesses if one.kind == kind and np.size(one.active) >= _LANES]
        requests = sum(_requests(one) for one in wide)
        return sum(request_sectors(one)[1] for one in wide) / requests if requests else 0.0

    @property
    def efficiency(self) -> float:
        """Bytes that were asked for over the bytes of the sectors that hold them."""
        counts = [request_sectors(one) for one in self.accesses]
        moved = sum(one[1] for one in counts) * SECTOR_BYTES
        return sum(one[0] for one in counts) / moved if moved else 1.0


def dangers() -> dict[str, int] | None:
    """What would go wrong on a GPU though results are right here, in all launches; None: no launch.

    Lanes that point outside of every tensor, and places that several programs write, or that one
    writes and another reads. Also work that was done beside the kernels: results that none of them
    wrote, tensors that none of them read.
    """
    seen = _WATCH.launches
    if not seen:
        return None
    found = [one for launch in seen for one in races(launch)]
    accesses = Launches(seen).accesses
    return {
        "lanes outside of every tensor": sum(
            int((one.active & ~one.inside).sum()) for one in accesses
        ),
        "places that programs race for": sum(int(one.evidence.get("places", 0)) for one in found),
        "results that no kernel wrote": len(_FROM_ELSEWHERE),
        "tensors given that no kernel read": len(_PUT_ASIDE),
    }


def _requests(access: Access) -> int:
    """Warps that have an active lane."""
    active = np.ravel(access.active)
    padded = np.pad(active, (0, -len(active) % _LANES)).reshape(-1, _LANES)
    return int(padded.any(axis=1).sum())


def watched(call: Callable[..., Any], *given: Any) -> tuple[Any, Launches]:
    """What a call returns, and the launches that it made."""
    before = len(_WATCH.launches)
    found = call(*given)
    launches = _WATCH.launches[before:]
    several = (
        isinstance(found, torch.Tensor) and found.numel() > 1
    )  # one number may be put together
    if several and launches and not any(one.wrote_to(found) for one in launches):
        _FROM_ELSEWHERE.append(found)
    if launches:
        tensors = [one for one in given if isinstance(one, torch.Tensor)]
        _PUT_ASIDE.extend(one for one in tensors if not any(two.read(one) for two in launches))
    return found, Launches(launches)
