"""What a memory snapshot says: peak, who held it, fragmentation, growth, segments.

The history is replayed backwards from the final state, which is known exactly from the blocks: the
level before an `alloc` is lower by its size, before a `free_completed` higher (the accounting of
torch/cuda/_memory_viz.py). The ring buffer may have forgotten the beginning; blocks older than it
are counted, and their call site is only known where the block itself carries one.

    fragmentation   share of the reserved bytes that nobody holds and that lie in segments which
                    also hold something: they cannot be given back to the device. Of an expandable
                    segment whole pages can, so only what shares a page with a live block is lost
    rounding        bytes of live blocks beyond what was asked for
    growth          lowest level of each eighth of the history; memory grows when each lies above
                    the one before, the first aside: weights and optimizer state appear in it
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from ridgeline.trace.formats.memory_snapshot import (
    NO_STACK,
    AllocatorEvent,
    Segment,
    Snapshot,
    call_site,
)
from ridgeline.trace.memory.growth import bytes_text

PARTS = 8
"""Parts of the history whose lowest levels are compared for growth."""
TIMELINE_POINTS = 400
_PAGE_BYTES = {"small": 2 << 20, "large": 20 << 20}
"""What an expandable segment maps and unmaps at once (c10/cuda/CUDACachingAllocator.cpp,
kSmallBuffer and kLargeBuffer)."""
_LEAST_GROWTH = 0.02
"""Rises below this share of the level are not called growth."""


class SiteBytes(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes that one line of code holds."""

    site: str
    bytes: int
    blocks: int


class SegmentFacts(msgspec.Struct, frozen=True, kw_only=True):
    """One segment, and what is free in it."""

    address: int
    stream: int
    kind: str
    total_bytes: int
    active_bytes: int
    largest_free_bytes: int
    blocks: int


class SnapshotMemory(msgspec.Struct, frozen=True, kw_only=True):
    """The memory of one device."""

    device: int
    reserved_bytes: int
    """Held by the allocator, used or not."""
    active_bytes: int
    """The bytes of live blocks."""
    requested_bytes: int
    """What was asked for in them."""
    unusable_free_bytes: int
    """Free, in segments that also hold something; of expandable ones without whole pages."""
    largest_free_bytes: int
    fragmentation: float
    """The share `unusable_free_bytes` over `reserved_bytes`."""
    peak_bytes: int
    """Highest level of live blocks within the recorded history."""
    peak_time_seconds: float | None
    """From the first recorded event; none without a history."""
    peak_by_site: list[SiteBytes]
    live_by_site: list[SiteBytes]
    growth_bytes: int
    """Level at the end less the level at the start of the history."""
    growing: bool
    """Do the lowest levels rise from part to part?"""
    growth_sentence: str
    part_lows_bytes: list[int]
    """Lowest level in each eighth of the history; empty for a short one."""
    growth_by_site: list[SiteBytes]
    """Allocated in the recorded history and never freed."""
    out_of_memory: int
    """The number of `oom` events."""
    history_events: int
    timeline: list[tuple[float, int]]
    """(seconds from the first event, live bytes): highest level per slice."""
    segments: list[SegmentFacts]
    warnings: list[str]


def snapshot_memory(snapshot: Snapshot) -> list[SnapshotMemory]:
    """One answer per device that holds memory or has a history."""
    by_device: dict[int, list[Segment]] = defaultdict(list)
    for segment in snapshot.segments:
        by_device[segment.device].append(segment)
    with_history = {index for index, trace in enumerate(snapshot.device_traces) if trace}
    found = []
    for device in sorted(set(by_device) | with_history):
        traces = snapshot.device_traces
        history = traces[device] if device < len(traces) else []
        found.append(_device(device, by_device.get(device, []), history))
    return found


def _device(
    device: int, segments: Sequence[Segment], history: Sequence[AllocatorEvent]
) -> SnapshotMemory:
    facts = [_segment(segment) for segment in segments]
    reserved = sum(fact.total_bytes for fact in facts)
    active = sum(fact.active_bytes for fact in facts)
    unusable = sum(map(_unusable_bytes, segments))
    replay = _Replay(segments, history)
    lows = _lows(replay.levels)
    growing = _rises(lows, float(replay.levels.max()))
    kept = _ranked(replay.kept())
    requested = sum(
        block.size if block.requested_size is None else block.requested_size
        for segment in segments
        for block in segment.blocks
        if block.active
    )
    return SnapshotMemory(
        device=device,
        reserved_bytes=reserved,
        active_bytes=active,
        requested_bytes=requested,
        unusable_free_bytes=unusable,
        largest_free_bytes=max((fact.largest_free_bytes for fact in facts), default=0),
        fragmentation=unusable / reserved if reserved else 0.0,
        peak_bytes=replay.peak_bytes,
        peak_time_seconds=replay.peak_time_seconds,
        peak_by_site=_ranked(replay.held_at_peak()),
        live_by_site=_ranked(replay.live),
        growth_bytes=int(replay.levels[-1] - replay.levels[0]),
        growing=growing,
        growth_sentence=_growth_sentence(lows, kept, growing=growing),
        part_lows_bytes=lows,
        growth_by_site=kept,
        out_of_memory=sum(1 for event in history if event.action == "oom"),
        history_events=len(history),
        timeline=replay.timeline(),
        segments=sorted(facts, key=lambda fact: -fact.total_bytes),
        warnings=replay.warnings,
    )


def _unusable_bytes(segment: Segment) -> int:
    """Bytes of free blocks that cannot be given back while the segment's live blocks stay."""
    if not any(block.active for block in segment.blocks):
        return 0
    page = _PAGE_BYTES.get(segment.segment_type, 0) if segment.is_expandable else 0
    lost = begun = 0
    for block in segment.blocks:
        end = begun + block.size
        if not block.active:
            pages = max(0, end // page + begun // -page) if page else 0
            lost += block.size - pages * page
        begun = end
    return lost


def _segment(segment: Segment) -> SegmentFacts:
    active = sum(block.size for block in segment.blocks if block.active)
    free = [block.size for block in segment.blocks if not block.active]
    return SegmentFacts(
        address=segment.address,
        stream=segment.stream,
        kind=segment.segment_type + (" expandable" if segment.is_expandable else ""),
        total_bytes=segment.total_size,
        active_bytes=active,
        largest_free_bytes=max(free, default=0),
        blocks=len(segment.blocks),
    )


Held = dict[int, tuple[int, str]]
"""Address → (bytes, call site)."""


class _Replay:
    """The history run through once: levels, and what is alive at the peak and at the end."""

    def __init__(self, segments: Sequence[Segment], history: Sequence[AllocatorEvent]) -> None:
        self.history = history
        self.warnings: list[str] = []
        self._sites: dict[int, str] = {}
        self.live = self._live_blocks(segments)
        changes = [_change(event) for event in history]
        final = sum(size for size, _ in self.live.values())
        total = sum(changes)
        self.levels: NDArray[np.int64] = np.concatenate(
            ([final - total], final - total + np.cumsum(changes, dtype=np.int64))
        ).astype(np.int64)
        self.peak_index = int(np.argmax(self.levels))
        self.peak_bytes = int(self.levels[self.peak_index])
        if not history:
            self.warnings.append("no history was recorded: the peak is the level at the end")
        elif int(self.levels.min()) < 0:
            self.warnings.append("the history frees more than the final state explains")

    @property
    def peak_time_seconds(self) -> float | None:
        """When the peak was reached."""
        if not self.history:
            return None
        event = self.history[max(0, self.peak_index - 1)]
        return (event.time_us - self.history[0].time_us) * 1e-6

    def held_at_peak(self) -> Held:
        """What was alive at the peak: the end undone event by event."""
        held = dict(self.live)
        for event in reversed(self.history[self.peak_index :]):
            if event.action == "alloc":
                held.pop(event.addr, None)
            elif event.action == "free_completed":
                held[event.addr] = (event.size, NO_STACK)
        # A free tells where it was freed, not where it was allocated: look for its allocation.
        missing = {address for address, (_, site) in held.items() if site == NO_STACK}
        for event in reversed(self.history[: self.peak_index]):
            if not missing:
                break
            if event.action == "alloc" and event.addr in missing:
                held[event.addr] = (held[event.addr][0], self._site(event.frames))
                missing.discard(event.addr)
        return held

    def kept(self) -> Held:
        """Allocated in the history and alive at the end."""
        born: Held = {}
        for event in self.history:
            if event.action == "alloc":
                born[event.addr] = (event.size, self._site(event.frames))
            elif event.action == "free_completed":
                born.pop(event.addr, None)
        return born

    def timeline(self) -> list[tuple[float, int]]:
        """The highest level of each slice of time, at most `TIMELINE_POINTS` of them."""
        if not self.history:
            return []
        start = self.history[0].time_us
        times = np.array([event.time_us - start for event in self.history]) * 1e-6
        slices = np.array_split(np.arange(len(times)), min(TIMELINE_POINTS, len(times)))
        return [(float(times[part[0]]), int(self.levels[1:][part].max())) for part in slices]

    def _live_blocks(self, segments: Sequence[Segment]) -> Held:
        sites: dict[int, str] = {}
        for event in self.history:
            if event.action == "alloc":
                sites[event.addr] = self._site(event.frames)
        live: Held = {}
        for segment in segments:
            address = segment.address
            for block in segment.blocks:
                place = address if block.address is None else block.address
                if block.active:
                    own = self._site(block.frames)
                    live[place] = (block.size, sites.get(place, own) if own == NO_STACK else own)
                address = place + block.size
        return live

    def _site(self, frames: Any) -> str:
        """Stacks are shared by many events: each is looked at once."""
        known = self._sites.get(id(frames))
        if known is None:
            known = self._sites[id(frames)] = call_site(frames)
        return known


def _change(event: AllocatorEvent) -> int:
    if event.action == "alloc":
        return event.size
    return -event.size if event.action == "free_completed" else 0


def _ranked(held: Held) -> list[SiteBytes]:
    totals: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for size, site in held.values():
        totals[site][0] += size
        totals[site][1] += 1
    ranked = sorted(totals.items(), key=lambda item: (-item[1][0], item[0]))
    return [SiteBytes(site=site, bytes=size, blocks=count) for site, (size, count) in ranked]


def _lows(levels: NDArray[np.int64]) -> list[int]:
    if len(levels) < 4 * PARTS:
        return []
    return [int(part.min()) for part in np.array_split(levels, PARTS)]


def _rises(lows: Sequence[int], highest: float) -> bool:
    """Does memory grow from part to part? One may stand still; none may fall."""
    steps = np.diff(np.array(lows[1:]))
    if not len(steps) or bool((steps < 0).any()):
        return False
    rises = int((steps > 0).sum()) >= len(steps) - 1
    return rises and lows[-1] - lows[1] > _LEAST_GROWTH * highest


def _growth_sentence(lows: Sequence[int], kept: Sequence[SiteBytes], *, growing: bool) -> str:
    if not lows:
        return "growth cannot be told: the history is too short"
    settled = lows[1:]
    low, high = bytes_text(min(settled)), bytes_text(max(settled))
    if not growing:
        return (
            f"does not grow: the lowest levels of {len(settled)} eighths of the history lie "
            f"between {low} and {high}"
        )
    text = (
        f"grows: its lowest level rises from eighth to eighth of the history, from {low} to {high}"
    )
    if kept:
        most = kept[0]
        text += f"; most is kept from {most.site}: {most.blocks} blocks, {bytes_text(most.bytes)}"
    return text
