"""An all-reduce step by step: who sends which part of the buffer to whom, and when all have it all.

    ring            2 (n − 1) steps of S / n bytes         Patarasuk and Yuan 2009, section 4
    tree            2 ⌈log2 n⌉ steps of S bytes            binomial; Thakur et al. 2005, section 4
    hierarchical    ring inside each fast domain down to 1/d of the buffer, ring of those across
                    domains, ring back                     Mikami et al., 1811.05233, section 3.2

n ranks in domains of d, a buffer of S bytes. In a step all sends run side by side, and the step is
as long as the slowest of them: latency + bytes / bandwidth of its link. Real libraries cut the
buffer finer and let steps overlap; `collective_volume.py` has their limits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from ridgeline.cost.collective_volume import Fabric

Algorithm = Literal["ring", "tree", "hierarchical"]
MOST_RANKS = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """Parts of the buffer that one rank sends to another in one step."""

    source: int
    target: int
    first_part: int
    num_parts: int
    adds: bool
    """The target adds them to its own; else it takes them over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveStep:
    """One step of all ranks."""

    phase: str
    seconds: float
    sent_bytes: float
    """Sent by the rank that sends most."""
    crosses: bool
    """A send leaves its fast domain."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AlgorithmTotal:
    """What an algorithm comes to."""

    algorithm: Algorithm
    num_steps: int
    seconds: float
    latency_seconds: float
    """The part that no bandwidth shortens."""
    sent_bytes: float
    """Sent by the rank that sends most, over all steps."""
    network_bytes: float
    """Over all ranks, what leaves a fast domain."""

    @property
    def waits_for_latency(self) -> bool:
        """Whether more than half of the time is latency."""
        return self.latency_seconds > 0.5 * self.seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class AllReduceSteps:
    """One algorithm in all its steps, looked at after one of them, beside the others."""

    algorithm: Algorithm
    num_ranks: int
    num_parts: int
    steps: tuple[CollectiveStep, ...]
    at_step: int
    """The step that is looked at, from 1; 0: before the first."""
    sends: tuple[Sent, ...]
    """What is sent in it."""
    held: tuple[tuple[int, ...], ...]
    """By rank and part, after it: how many ranks' contributions the sum there holds."""
    elapsed_seconds: float
    """Seconds from the beginning until its end."""
    totals: tuple[AlgorithmTotal, ...]
    """Every algorithm that these ranks can run, the fastest first."""


_Plan = list[tuple[str, list[Sent]]]


def all_reduce_steps(
    algorithm: Algorithm, num_ranks: int, buffer_bytes: float, fabric: Fabric, at_step: int = 0
) -> AllReduceSteps:
    """An all-reduce step by step, and how its algorithm compares with the others.

    >>> fabric = Fabric(
    ...     domain_size=4, domain_bytes_per_second=400e9, network_bytes_per_second=50e9
    ... )
    >>> found = all_reduce_steps("ring", 4, 1e9, fabric, at_step=3)
    >>> len(found.steps), found.held[0], found.totals[0].sent_bytes
    (6, (1, 4, 3, 2), 1500000000.0)

    Raises:
        ValueError: The ranks cannot run it, or there is no such step.
    """
    if not 2 <= num_ranks <= MOST_RANKS:
        raise ValueError(f"num_ranks is {num_ranks}: give 2 to {MOST_RANKS}")
    if fabric.domain_size < 1 or buffer_bytes < 0:
        raise ValueError("a domain has a rank or more, and a buffer no less than 0 bytes")
    plans = {name: make(num_ranks, fabric.domain_size) for name, make in _PLANS.items()}
    plan = plans.get(algorithm) or []
    if not plan:
        raise ValueError(
            f"hierarchical needs whole domains and more than one: {num_ranks} ranks in domains of"
            f" {fabric.domain_size} are not; change one of the two"
        )
    if not 0 <= at_step <= len(plan):
        raise ValueError(f"at_step is {at_step}: {algorithm} has steps 1 to {len(plan)}")
    part_bytes = buffer_bytes / num_ranks
    steps = tuple(_step(phase, sends, part_bytes, fabric) for phase, sends in plan)
    totals = [_total(name, other, part_bytes, fabric) for name, other in plans.items() if other]
    return AllReduceSteps(
        algorithm=algorithm,
        num_ranks=num_ranks,
        num_parts=num_ranks,
        steps=steps,
        at_step=at_step,
        sends=tuple(plan[at_step - 1][1]) if at_step else (),
        held=_held(plan[:at_step], num_ranks),
        elapsed_seconds=sum(step.seconds for step in steps[:at_step]),
        totals=tuple(sorted(totals, key=lambda one: one.seconds)),
    )


def _held(plan: _Plan, num_ranks: int) -> tuple[tuple[int, ...], ...]:
    """Whose contributions each rank's parts hold after these steps, counted.

    Raises:
        AssertionError: A contribution would be added twice.
    """
    held = [[frozenset({rank}) for _ in range(num_ranks)] for rank in range(num_ranks)]
    for _, sends in plan:
        before = [list(parts) for parts in held]
        for sent in sends:
            for part in range(sent.first_part, sent.first_part + sent.num_parts):
                given, own = before[sent.source][part], before[sent.target][part]
                assert not (sent.adds and given & own), "a contribution is added twice"
                held[sent.target][part] = given | own if sent.adds else given
    return tuple(tuple(len(one) for one in parts) for parts in held)


def _step(phase: str, sends: list[Sent], part_bytes: float, fabric: Fabric) -> CollectiveStep:
    seconds = [_seconds(sent, part_bytes, fabric) for sent in sends]
    sent_by: dict[int, float] = {}
    for sent in sends:
        sent_by[sent.source] = sent_by.get(sent.source, 0.0) + sent.num_parts * part_bytes
    return CollectiveStep(
        phase=phase,
        seconds=max(seconds),
        sent_bytes=max(sent_by.values()),
        crosses=any(_crosses(sent, fabric) for sent in sends),
    )


def _crosses(sent: Sent, fabric: Fabric) -> bool:
    return sent.source // fabric.domain_size != sent.target // fabric.domain_size


def _seconds(sent: Sent, part_bytes: float, fabric: Fabric) -> float:
    moved = sent.num_parts * part_bytes
    if _crosses(sent, fabric):
        return fabric.network_latency_seconds + moved / fabric.network_bytes_per_second
    return fabric.domain_latency_seconds + moved / fabric.domain_bytes_per_second


def _total(name: Algorithm, plan: _Plan, part_bytes: float, fabric: Fabric) -> AlgorithmTotal:
    sent_by: dict[int, float] = {}
    network = 0.0
    for _, sends in plan:
        for sent in sends:
            moved = sent.num_parts * part_bytes
            sent_by[sent.source] = sent_by.get(sent.source, 0.0) + moved
            network += moved if _crosses(sent, fabric) else 0.0
    return AlgorithmTotal(
        algorithm=name,
        num_steps=len(plan),
        seconds=sum(_step(phase, sends, part_bytes, fabric).seconds for phase, sends in plan),
        latency_seconds=sum(_step(phase, sends, 0.0, fabric).seconds for phase, sends in plan),
        sent_bytes=max(sent_by.values()),
        network_bytes=network,
    )


def _one(source: int, target: int, part: int, *, adds: bool) -> Sent:
    return Sent(source=source, target=target, first_part=part, num_parts=1, adds=adds)


def _ring(num_ranks: int, _: int) -> _Plan:
    """In step s rank r passes on part r − s; once summed, part r + 1 − s."""
    plan: _Plan = []
    for step in range(num_ranks - 1):
        sends = [
            _one(rank, (rank + 1) % num_ranks, (rank - step) % num_ranks, adds=True)
            for rank in range(num_ranks)
        ]
        plan.append(("reduce-scatter", sends))
    for step in range(num_ranks - 1):
        sends = [
            _one(rank, (rank + 1) % num_ranks, (rank + 1 - step) % num_ranks, adds=False)
            for rank in range(num_ranks)
        ]
        plan.append(("all-gather", sends))
    return plan


def _tree(num_ranks: int, _: int) -> _Plan:
    """Up a binomial tree to rank 0, and down again."""
    distances = [2**level for level in range((num_ranks - 1).bit_length())]
    up: list[list[Sent]] = [
        [
            Sent(source=rank, target=rank - far, first_part=0, num_parts=num_ranks, adds=True)
            for rank in range(far, num_ranks, 2 * far)
        ]
        for far in distances
    ]
    down: list[list[Sent]] = [
        [
            Sent(
                source=sent.target, target=sent.source, first_part=0,
                num_parts=num_ranks, adds=False,
            )
            for sent in sends
        ]
        for sends in reversed(up)
    ]  # fmt: skip
    return [*(("reduce", sends) for sends in up), *(("broadcast", sends) for sends in down)]


def _hierarchical(num_ranks: int, domain_size: int) -> _Plan:
    """Rank j of a domain gets slice j of the domain's sum; rings join these; and back."""
    domains = num_ranks // domain_size
    if num_ranks % domain_size or domains < 2:
        return []

    def inside(phase: str, shift: int, *, adds: bool) -> _Plan:
        """The ring of each domain over d slices of n / d parts."""
        plan: _Plan = []
        for step in range(domain_size - 1):
            sends = []
            for rank in range(num_ranks):
                first, place = rank - rank % domain_size, rank % domain_size
                slice_ = (place + shift - step) % domain_size
                target = first + (place + 1) % domain_size
                sends.append(
                    Sent(
                        source=rank, target=target, first_part=slice_ * domains,
                        num_parts=domains, adds=adds,
                    )
                )  # fmt: skip
            plan.append((phase, sends))
        return plan

    def across(phase: str, shift: int, *, adds: bool) -> _Plan:
        """The ring of all domains over the parts of the slice that each rank has summed."""
        plan: _Plan = []
        for step in range(domains - 1):
            sends = []
            for rank in range(num_ranks):
                domain, place = divmod(rank, domain_size)
                slice_ = (place + 1) % domain_size
                target = (domain + 1) % domains * domain_size + place
                part = slice_ * domains + (domain + shift - step) % domains
                sends.append(_one(rank, target, part, adds=adds))
            plan.append((phase, sends))
        return plan

    return [
        *inside("reduce-scatter in domains", 0, adds=True),
        *across("reduce-scatter across", 0, adds=True),
        *across("all-gather across", 1, adds=False),
        *inside("all-gather in domains", 1, adds=False),
    ]


_PLANS: dict[Algorithm, Callable[[int, int], _Plan]] = {
    "ring": _ring,
    "tree": _tree,
    "hierarchical": _hierarchical,
}
