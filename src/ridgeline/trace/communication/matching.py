"""Several ranks as one job: communication matched across ranks, and clocks aligned.

A message joins two ranks (`messages.py`). A collective ends on all its ranks together, because
nobody has the result before the last one came.
So the k-th collective of a name and group on one rank is the k-th on another; the median
difference of their ends is the difference of two clocks. Below `SAME_CLOCK_US` ranks share a clock
and nothing is moved.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ridgeline.trace.columns import ABSENT, Collective, Floats, Ints, Trace
from ridgeline.trace.communication.messages import MessageEnd, ends_of_messages
from ridgeline.trace.kernel_names import is_communication, short_name
from ridgeline.trace.sorting import median

SAME_CLOCK_US = 50.0
"""Ends of one collective differ by this much on one clock: polling, and the profiler's stamps."""
_LEAVES_US = 5.0
"""Nobody leaves a collective so long before the last one has come."""
_TOGETHER_US = 1000.0
"""Collectives whose ends differ by more than this after alignment do not wait for each other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankCollectives:
    """What one rank brings to the matching: small enough to keep a thousand of them."""

    file: str
    rank: int | None
    world_size: int | None
    base_us: float
    clock_offset_ns: int
    rows: Ints
    """Communication kernels in the GPU table, by start."""
    start_us: Floats
    end_us: Floats
    keys: tuple[tuple[str, ...], ...]
    """Name and group; what has the same key on two ranks may be one collective."""
    names: tuple[str, ...]
    facts: tuple[Collective | None, ...]
    messages: tuple[MessageEnd | None, ...] = ()
    """What each one sends or receives, where it is no collective; empty where none does."""

    def name(self, position: int) -> int:
        """The rank, or the position in the input where the trace does not say."""
        return position if self.rank is None else self.rank


@dataclass(frozen=True, slots=True, kw_only=True)
class MatchedCollective:
    """One collective, or one message, as all its ranks saw it."""

    name: str
    collective: Collective | None
    positions: tuple[int, ...]
    """The traces that saw it, by their places in the input."""
    events: tuple[int, ...]
    """Row of each one's GPU table."""
    start_us: Floats
    """On the common clock."""
    end_us: Floats
    is_message: bool = False
    """Is it sent by the first of two ranks and received by the second?"""

    @property
    def wait_us(self) -> Floats:
        """How long each rank stood in it until the last one came, or it had sent its part."""
        arrived = self.start_us.max()
        waits: Floats = np.minimum(self.end_us, arrived) - self.start_us
        return waits

    @property
    def last(self) -> int:
        """Position of the trace that arrived last."""
        return self.positions[int(np.argmax(self.start_us))]

    @property
    def transfer_us(self) -> float:
        """From the last arrival to the last end."""
        return float(self.end_us.max() - self.start_us.max())


@dataclass(frozen=True, slots=True, kw_only=True)
class AlignedRanks:
    """Traces on one clock, with what joins them."""

    shift_us: tuple[float, ...]
    """To be added to the times of each trace: those of the first trace result."""
    clock_offset_us: tuple[float, ...]
    """Part of the shift that corrects the clock itself."""
    matched: tuple[MatchedCollective, ...]
    """The common collectives, by last arrival."""
    missing_ranks: tuple[int, ...]
    warnings: tuple[str, ...]


def rank_collectives(trace: Trace) -> RankCollectives:
    """The communication kernels of one trace."""
    gpu = trace.gpu
    rows = np.flatnonzero(is_communication(trace))
    facts = [
        None if which == ABSENT else trace.collectives[which]
        for which in gpu.collective[rows].tolist()
    ]
    names = [short_name(trace.names[name]) for name in gpu.name[rows].tolist()]
    return RankCollectives(
        file=trace.file,
        rank=trace.rank,
        world_size=trace.world_size,
        base_us=trace.base_us,
        clock_offset_ns=trace.clock_offset_ns,
        rows=rows,
        start_us=gpu.start_us[rows],
        end_us=gpu.start_us[rows] + gpu.duration_us[rows],
        keys=tuple(_key(name, fact) for name, fact in zip(names, facts, strict=True)),
        names=tuple(names),
        facts=tuple(facts),
        messages=ends_of_messages(trace, rows, facts),
    )


def align_ranks(ranks: Sequence[RankCollectives]) -> AlignedRanks:
    """Match collectives and align clocks."""
    warnings: list[str] = []
    missing = _missing(ranks, warnings)
    base = [_base_shift_us(ranks[0], rank) for rank in ranks]
    groups = _groups(ranks)
    offsets = _clock_offsets(ranks, groups, base, warnings)
    shifts = [shift + offset for shift, offset in zip(base, offsets, strict=True)]
    matched = _matched(ranks, groups, shifts, warnings)
    matched += _matched_messages(ranks, shifts, warnings)
    return AlignedRanks(
        shift_us=tuple(shifts),
        clock_offset_us=tuple(offsets),
        matched=tuple(sorted(matched, key=lambda one: float(one.start_us.max()))),
        missing_ranks=tuple(missing),
        warnings=tuple(warnings),
    )


def _missing(ranks: Sequence[RankCollectives], warnings: list[str]) -> list[int]:
    sizes = {rank.world_size for rank in ranks if rank.world_size}
    there = {rank.rank for rank in ranks if rank.rank is not None}
    if len(sizes) > 1:
        warnings.append(f"traces of jobs of different size: {sorted(sizes)} ranks")
    if not sizes or not there:
        return []
    missing = sorted(set(range(max(sizes))) - there)
    if missing:
        shown = ", ".join(map(str, missing[:8])) + (", …" if len(missing) > 8 else "")
        warnings.append(
            f"{len(missing)} of {max(sizes)} ranks are not here ({shown}): who arrives last is "
            "only known among those that are"
        )
    return missing


def _base_shift_us(first: RankCollectives, rank: RankCollectives) -> float:
    clocks = (rank.clock_offset_ns - first.clock_offset_ns) / 1e3
    return (rank.base_us - first.base_us) + clocks


Group = dict[int, Ints]
"""Position of the rank → its events of one key, as indices into its columns."""


def _groups(ranks: Sequence[RankCollectives]) -> dict[tuple[str, ...], Group]:
    found: dict[tuple[str, ...], Group] = defaultdict(dict)
    for position, rank in enumerate(ranks):
        keys: dict[tuple[str, ...], list[int]] = defaultdict(list)
        for index, key in enumerate(rank.keys):
            if not rank.messages or rank.messages[index] is None:
                keys[key].append(index)
        for key, own in keys.items():
            found[key][position] = np.array(own, np.int64)
    return {key: group for key, group in found.items() if len(group) > 1}


def _key(kernel: str, facts: Collective | None) -> tuple[str, ...]:
    if facts is None:
        return (kernel,)
    whole = facts.ranks if facts.ranks and "..." not in facts.ranks else None
    return (facts.name, whole or facts.group_description or facts.group or "")


def _clock_offsets(
    ranks: Sequence[RankCollectives],
    groups: dict[tuple[str, ...], Group],
    base: Sequence[float],
    warnings: list[str],
) -> list[float]:
    """What each clock is behind the first rank's, by the ends of the collectives they share."""
    differences: dict[int, list[Floats]] = defaultdict(list)
    for group in groups.values():
        if 0 not in group:
            continue  # only what the first rank takes part in tells its clock
        reference = ranks[0].end_us[group[0]] + base[0]
        for position, own in group.items():
            if position:
                left, right = _overlaid(reference, ranks[position].end_us[own] + base[position])
                differences[position].append(left - right)
    offsets = [0.0] * len(ranks)
    for position, parts in differences.items():
        offset = median(np.concatenate(parts))
        if abs(offset) > SAME_CLOCK_US:
            offsets[position] = offset
            name = ranks[position].name(position)
            warnings.append(f"clock of rank {name} moved by {offset:.0f} µs, to end together")
    return offsets


def _overlaid(a: Floats, b: Floats) -> tuple[Floats, Floats]:
    """The two sequences without what only the longer one saw, before or after."""
    if len(a) <= len(b):
        first = _best_shift(a, b)
        return a, b[first : first + len(a)]
    first = _best_shift(b, a)
    return a[first : first + len(b)], b


def _best_shift(short: Floats, long: Floats) -> int:
    """The way to lay the shorter on the longer one with the steadiest difference."""
    many = len(short)
    return min(
        range(len(long) - many + 1),
        key=lambda shift: float(np.std(long[shift : shift + many] - short)),
    )


def _matched(
    ranks: Sequence[RankCollectives],
    groups: dict[tuple[str, ...], Group],
    shifts: Sequence[float],
    warnings: list[str],
) -> list[MatchedCollective]:
    found = []
    apart = one_sided = 0
    for group in groups.values():
        rows = _same_length(ranks, group, shifts)
        positions = tuple(sorted(rows))
        starts = np.stack([ranks[p].start_us[rows[p]] + shifts[p] for p in positions], axis=1)
        ends = np.stack([ranks[p].end_us[rows[p]] + shifts[p] for p in positions], axis=1)
        together = (np.ptp(ends, axis=1) <= _TOGETHER_US) & (starts.max(axis=1) < ends.max(axis=1))
        apart += int((~together).sum())
        if _is_one_sided(starts[together], ends[together]):
            one_sided += int(together.sum())
            continue
        first = positions[0]
        for index in np.flatnonzero(together).tolist():
            own = int(rows[first][index])
            found.append(
                MatchedCollective(
                    name=ranks[first].names[own],
                    collective=ranks[first].facts[own],
                    positions=positions,
                    events=tuple(int(ranks[p].rows[rows[p][index]]) for p in positions),
                    start_us=starts[index],
                    end_us=ends[index],
                )
            )
    if one_sided:
        warnings.append(
            f"{one_sided} communication kernels end on some ranks before others begin them: they "
            "send or fetch without waiting for everybody, so who waits for whom is not known"
        )
    if apart:
        warnings.append(
            f"{apart} communication kernels do not end together across ranks and were not matched"
        )
    return found


def _is_one_sided(starts: Floats, ends: Floats) -> bool:
    """Do ranks mostly leave before the last one has come, as those do that only put or get data?

    Halves of an exchange, one that sends and one that waits for data (DeepEP, NVSHMEM), are no
    collectives. Stamps of clocks that are a little apart are laid on each other first.
    """
    if not len(ends):
        return False
    apart = np.median(ends - ends.mean(axis=1, keepdims=True), axis=0)
    apart = np.clip(apart, -SAME_CLOCK_US, SAME_CLOCK_US)
    early = (starts - apart).max(axis=1) - (ends - apart).min(axis=1) > _LEAVES_US
    return bool(early.mean() > 0.5)


def _messages(ranks: Sequence[RankCollectives]) -> dict[tuple[str, int, int], Group]:
    """Group, sender and receiver → the messages between them, of the sender and the receiver."""
    places = {rank.name(position): position for position, rank in enumerate(ranks)}
    ends: dict[tuple[str, int, int], dict[int, list[int]]] = defaultdict(dict)
    for position, rank in enumerate(ranks):
        for index, message in enumerate(rank.messages):
            if message is not None and message.peer in places:
                own = rank.name(position)
                pair = (own, message.peer) if message.sends else (message.peer, own)
                ends[message.group, *pair].setdefault(position, []).append(index)
    return {
        key: {places[one]: np.array(found[places[one]], np.int64) for one in key[1:]}
        for key, found in ends.items()
        if len(found) == 2
    }


def _matched_messages(
    ranks: Sequence[RankCollectives], shifts: Sequence[float], warnings: list[str]
) -> list[MatchedCollective]:
    """The k-th message from one rank to another is the k-th that this one receives from it."""
    found = []
    lost = 0
    for group in _messages(ranks).values():
        positions = tuple(group)  # the sender, the receiver
        sent, received = _overlaid_rows(ranks, group, shifts)
        for own in zip(sent.tolist(), received.tolist(), strict=True):
            pairs = list(zip(positions, own, strict=True))
            starts = np.array([ranks[p].start_us[row] + shifts[p] for p, row in pairs])
            ends = np.array([ranks[p].end_us[row] + shifts[p] for p, row in pairs])
            if starts[0] >= ends[1]:  # received before it was sent
                lost += 1
                continue
            found.append(
                MatchedCollective(
                    name=ranks[positions[1]].names[own[1]],
                    collective=ranks[positions[1]].facts[own[1]],
                    positions=positions,
                    events=tuple(int(ranks[p].rows[row]) for p, row in pairs),
                    start_us=starts,
                    end_us=ends,
                    is_message=True,
                )
            )
    if lost:
        warnings.append(f"{lost} messages seem received before they were sent: not matched")
    return found


def _overlaid_rows(
    ranks: Sequence[RankCollectives], group: Group, shifts: Sequence[float]
) -> tuple[Ints, Ints]:
    """The messages that both sides saw, those of the sender and those of the receiver."""
    rows = _same_length(ranks, group, shifts)
    sender, receiver = group
    return rows[sender], rows[receiver]


def _same_length(ranks: Sequence[RankCollectives], group: Group, shifts: Sequence[float]) -> Group:
    """The part of each rank's sequence that all of them saw."""
    shortest = min(group, key=lambda position: len(group[position]))
    reference = ranks[shortest].end_us[group[shortest]] + shifts[shortest]
    rows = {}
    for position, own in group.items():
        ends = ranks[position].end_us[own] + shifts[position]
        first = _best_shift(reference, ends)
        rows[position] = own[first : first + len(reference)]
    return rows
