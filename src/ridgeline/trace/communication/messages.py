"""Messages from one rank to another: what a kernel sends or receives, and whom to or from.

Pipelines send activations on and gradients back, rings of context parallelism pass keys and values
around. Since PyTorch 2.3 a kernel's arguments name the peer (`Dst Rank` of a `send`, `Src Rank` of
a `recv`, torch/csrc/profiler/util.cpp); before, the range around its launch does
(`nccl:send 0->1`, `nccl:recv 1<-0`, ProcessGroupNCCL.cpp), in ranks of its group. What was launched
before the trace began has no range: it is what all others on its stream are, because each pair of
ranks has a communicator, hence a stream, of its own.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from ridgeline.trace.columns import ABSENT, Collective, Ints, Trace
from ridgeline.trace.host_calls import innermost_at, launch_rows

_NAME = re.compile(r"^_?i?(send|recv)(_any_source)?_?$", re.IGNORECASE)
_RANGE = re.compile(r"^\w+:i?(send|recv) (\d+)(?:->|<-)(\d+)", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageEnd:
    """One side of a message."""

    sends: bool
    """Does this rank send it?"""
    peer: int
    """The other rank, counted over the whole job."""
    group: str
    """The process group as both sides name it; empty where the trace does not say."""


def ends_of_messages(
    trace: Trace, rows: Ints, facts: Sequence[Collective | None]
) -> tuple[MessageEnd | None, ...]:
    """What each communication kernel sends or receives; None for collectives, empty for no message.

    Args:
        trace: the trace of one rank.
        rows: communication kernels in its GPU table.
        facts: what the arguments of each say.
    """
    found = [None if fact is None else _told(fact, trace.rank) for fact in facts]
    silent = [
        place
        for place, fact in enumerate(facts)
        if found[place] is None and (fact is None or _NAME.match(fact.name))
    ]
    if silent and any(map(_RANGE.match, trace.names)):
        for place, said in zip(silent, _by_ranges(trace, rows[silent]), strict=True):
            found[place] = said
        _by_streams(trace, rows, silent, found)
    return tuple(found) if any(one is not None for one in found) else ()


def is_message(fact: Collective | None) -> bool:
    """Do the arguments say that a kernel sends or receives a message?"""
    return fact is not None and bool(_NAME.match(fact.name))


def _told(fact: Collective, own: int | None) -> MessageEnd | None:
    """What the arguments say; of a group of two the other one is the peer."""
    named = _NAME.match(fact.name)
    if named is None:
        return None
    sends = named[1].lower() == "send"
    peer = fact.destination_rank if sends else fact.source_rank
    members = _members(fact.ranks)
    if peer is None and len(members) == 2 and own in members:
        peer = members[1 - members.index(own)]
    if peer is None or peer == own:
        return None
    group = fact.ranks if members else fact.group_description or fact.group
    return MessageEnd(sends=sends, peer=peer, group=group or "")


def _members(ranks: str | None) -> list[int]:
    """The ranks of a group, where they are written out."""
    try:
        return msgspec.json.decode(ranks or "[]", type=list[int])
    except msgspec.DecodeError:
        return []


def _by_ranges(trace: Trace, rows: Ints) -> list[MessageEnd | None]:
    """What the range around the launch of each says."""
    host, calls = trace.host, launch_rows(trace)[rows]
    said = [_RANGE.match(name) for name in trace.names]
    found: list[MessageEnd | None] = [None] * len(rows)
    known = np.flatnonzero(calls != ABSENT)
    inside = innermost_at(
        trace,
        host.thread[calls[known]].astype(np.int64),
        host.start_us[calls[known]],
        np.array([one is not None for one in said])[host.name],
    )
    for place, row in zip(known.tolist(), inside.tolist(), strict=True):
        named = said[host.name[row]] if row != ABSENT else None
        if named is not None:
            sends = named[1].lower() == "send"
            found[place] = MessageEnd(sends=sends, peer=int(named[3]), group="")
    return found


def _by_streams(
    trace: Trace, rows: Ints, silent: Sequence[int], found: list[MessageEnd | None]
) -> None:
    """Fill in what was launched before the trace began, on streams that only do one thing."""
    streams = trace.gpu.stream[rows].tolist()
    ends: dict[int, set[MessageEnd | None]] = {}
    early = []
    for place in silent:
        if found[place] is None and launch_rows(trace)[rows[place]] == ABSENT:
            early.append(place)
        else:
            ends.setdefault(streams[place], set()).add(found[place])
    for place in early:
        known = ends.get(streams[place], set())
        found[place] = next(iter(known)) if len(known) == 1 else None
