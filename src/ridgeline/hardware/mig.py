"""How a GPU may be cut by MIG: profiles by device, and every cut that the hardware takes.

A GPU has a row of memory slices. An instance of a profile takes some that lie side by side, and may
begin only where `starts` says; what does not overlap can be there together (NVIDIA MIG User Guide).
The facts are `mig.toml`.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass

from ridgeline.errors import InputError
from ridgeline.hardware.catalogue import FACTS
from ridgeline.hardware.facts import Device, Fact, Source
from ridgeline.records.input_file import read_toml

Cut = tuple[int, ...]
"""Instances of a GPU, by the places of their profiles, descending."""


class MigProfile(Fact, frozen=True, kw_only=True):
    """One kind of instance."""

    name: str
    """The name that nvidia-smi gives it, `3g.40gb`."""
    compute: int
    """The compute slices that it takes."""
    memory: int
    """The memory slices that it takes."""
    starts: list[int]
    """The memory slices at which an instance may begin."""
    memory_bytes: int | None = None
    """What an instance reports; None: no listing was found."""
    sms: int | None = None


class _Geometry(Fact, frozen=True, kw_only=True):
    devices: list[str]
    sources: list[str]
    memory_slices: int
    compute_slices: int
    sms: int
    """SMs of the whole GPU without MIG."""
    profile: list[MigProfile]


class _Unlisted(Fact, frozen=True, kw_only=True):
    source: str
    memory_share: float
    compute_share: float


class SharingLoss(Fact, frozen=True, kw_only=True):
    """What sharing a GPU costs."""

    share: float
    """The part of its throughput."""
    source: str


class _Losses(Fact, frozen=True, kw_only=True):
    mps: SharingLoss
    time_slicing: SharingLoss


class _MigFile(Fact, frozen=True, kw_only=True):
    sources: dict[str, Source]
    unlisted: _Unlisted
    losses: _Losses
    geometry: list[_Geometry]


@dataclass(frozen=True, slots=True, kw_only=True)
class MigSlice:
    """One instance, as a part of its GPU."""

    name: str
    memory_bytes: int
    compute_share: float
    """Its SMs, of all."""
    bandwidth_share: float
    """Its memory slices, of all."""
    listed: bool
    """Its memory and SMs were read off a GPU; else they are the least to be expected."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MigGeometry:
    """Everything about the instances of one device, from the smallest profile to the largest."""

    profiles: tuple[MigProfile, ...]
    slices: tuple[MigSlice, ...]
    memory_slices: int

    def cuts(self) -> list[Cut]:
        """Every cut to which no further instance can be added, each once.

        >>> from ridgeline.hardware.catalogue import device
        >>> geometry = mig_geometry(device("a30"))
        >>> [[geometry.profiles[one].name for one in cut] for cut in geometry.cuts()][0]
        ['4g.24gb']
        """
        held = [tuple(place for _, place in laid) for laid in self.layouts()]
        return sorted({tuple(sorted(one, reverse=True)) for one in held}, reverse=True)

    def layouts(self) -> list[tuple[tuple[int, int], ...]]:
        """Where instances may lie together: (start, place of the profile), ascending."""
        return sorted(set(self._laid(frozenset(), ())))

    def _laid(
        self, used: frozenset[int], so_far: tuple[tuple[int, int], ...]
    ) -> Iterator[tuple[tuple[int, int], ...]]:
        """Instances in the order of their starts; only what leaves no room for another."""
        after = so_far[-1][0] if so_far else -1
        for place, profile in enumerate(self.profiles):
            for start in profile.starts:
                span = frozenset(range(start, start + profile.memory))
                if start > after and not span & used:
                    yield from self._laid(used | span, (*so_far, (start, place)))
        if not any(self._has_room(profile, used) for profile in self.profiles):
            yield so_far

    def _has_room(self, profile: MigProfile, used: frozenset[int]) -> bool:
        return any(not used & set(range(start, start + profile.memory)) for start in profile.starts)


@functools.cache
def _mig_file() -> _MigFile:
    path = FACTS / "mig.toml"
    found = read_toml(path, _MigFile)
    cited = [found.unlisted.source, found.losses.mps.source, found.losses.time_slicing.source]
    cited += [key for one in found.geometry for key in one.sources]
    for key in cited:
        if key not in found.sources:
            raise InputError(f"{path}: source {key!r} is not in [sources]")
    return found


def sharing_losses() -> dict[str, SharingLoss]:
    """What MPS and time-slicing cost, by `mps` and `time-slicing`."""
    losses = _mig_file().losses
    return {"mps": losses.mps, "time-slicing": losses.time_slicing}


def mig_devices() -> list[str]:
    """The devices that we know to take MIG."""
    return [name for one in _mig_file().geometry for name in one.devices]


def mig_geometry(part: Device) -> MigGeometry | None:
    """How a device is cut; None: it has no MIG, or we do not know its profiles.

    >>> from ridgeline.hardware.catalogue import device
    >>> len(mig_geometry(device("h100")).slices), mig_geometry(device("l4"))
    (6, None)
    """
    found = _mig_file()
    for one in found.geometry:
        if part.name in one.devices:
            return MigGeometry(
                profiles=tuple(one.profile),
                slices=tuple(_slice(profile, one, part, found.unlisted) for profile in one.profile),
                memory_slices=one.memory_slices,
            )
    return None


def _slice(profile: MigProfile, one: _Geometry, part: Device, unlisted: _Unlisted) -> MigSlice:
    bandwidth = profile.memory / one.memory_slices
    memory = profile.memory_bytes
    return MigSlice(
        name=profile.name,
        memory_bytes=(
            memory if memory is not None
            else int(bandwidth * part.memory.usable_bytes * unlisted.memory_share)
        ),
        compute_share=(
            profile.sms / one.sms if profile.sms is not None
            else profile.compute / one.compute_slices * unlisted.compute_share
        ),
        bandwidth_share=bandwidth,
        listed=memory is not None and profile.sms is not None,
    )  # fmt: skip
