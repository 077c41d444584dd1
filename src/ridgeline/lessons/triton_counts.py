"""What Triton launches touch, seen by the interpreter: programs, lanes, bytes, sectors, requests.

A request is what 32 lanes ask for by one load or store; a sector is 32 bytes of memory.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ridgeline.kernels.check.judging import (
    SECTOR_BYTES,
    bytes_in,
    launch_record,
    request_sectors,
    unique_bytes,
)
from ridgeline.kernels.check.races import races
from ridgeline.kernels.check.seen import Access, SeenLaunch, among
from ridgeline.kernels.check.watching import LaunchWatch

_WATCH = LaunchWatch()
_BESIDE: dict[str, int] = {}
"""What was done beside the kernels of calls that launched any → how many bytes or tensors."""
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
    writes and another reads. Also work that was done beside the kernels: bytes of results that none
    of them wrote, and of tensors given that none of them read, or that are others afterwards.
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
        **_BESIDE,
    }


def _requests(access: Access) -> int:
    """Warps that have an active lane."""
    active = np.ravel(access.active)
    padded = np.pad(active, (0, -len(active) % _LANES)).reshape(-1, _LANES)
    return int(padded.any(axis=1).sum())


def launched() -> bool:
    """Whether this process has launched a kernel."""
    return bool(_WATCH.launches)


@contextlib.contextmanager
def idle() -> Iterator[None]:
    """Pass over every launch, as long as the block does."""
    _WATCH.idle = True
    try:
        yield
    finally:
        _WATCH.idle = False


def watched(
    call: Callable[..., Any],
    *given: Any,
    selected: torch.Tensor | None = None,
    in_place: bool = False,
) -> tuple[Any, Launches]:
    """What a call returns, and the launches that it made.

    Args:
        call: What launches kernels.
        given: What it is called with.
        selected: Which numbers of the first of `given` have to be read. Default: all.
        in_place: Whether it may change what it is given.
    """
    before = len(_WATCH.launches)
    tensors = [one for one in given if isinstance(one, torch.Tensor)]
    kept = [one.clone() for one in tensors]
    found = call(*given)
    launches = _WATCH.launches[before:]
    if launches:
        _note_beside(found, tensors, launches, selected)
        changed = sum(
            not torch.equal(one, was) for one, was in zip(tensors, kept, strict=True)
        )  # fmt: skip
        _add("tensors given that were changed", 0 if in_place else changed)
    return found, Launches(launches)


def _note_beside(
    found: Any,
    tensors: Sequence[torch.Tensor],
    launches: Sequence[SeenLaunch],
    selected: torch.Tensor | None,
) -> None:
    accesses = [access for one in launches for access in one.accesses]
    written = unique_bytes([one for one in accesses if one.kind != "load"])
    read = unique_bytes([one for one in accesses if one.kind != "store"])
    several = isinstance(found, torch.Tensor) and found.numel() > 1
    returned = bytes_in([found] if several else [])  # one number may be put together
    _add("bytes of results that no kernel wrote", int((~among(returned, written)).sum()))
    for at, one in enumerate(tensors):
        places = bytes_in([one])
        if at == 0 and selected is not None and one.is_contiguous():
            places = places[selected.repeat_interleave(one.element_size()).numpy()]
        _add("bytes given that no kernel read", int((~among(places, read)).sum()))


def _add(what: str, count: int) -> None:
    _BESIDE[what] = _BESIDE.get(what, 0) + count
