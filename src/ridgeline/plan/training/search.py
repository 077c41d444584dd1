"""One pass over many layouts that keeps what a planner asks about, in bounded memory.

Memory is judged first, since that is cheap and rules most layouts out; time only for those that
fit. Kept are the best layout of every family (layouts that agree in the knobs of `FAMILY`), the
Pareto front of step time against peak memory, and the layout that came nearest when none fits.
Offloading only adds traffic, so an offloaded layout is judged only where the same layout does
not fit without it, unless the objective is memory.

Peak memory alone is several times cheaper than the whole estimate, so a `Judge` is asked for it
separately; a test holds it equal to what `estimate_training` says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from ridgeline.cost.arrays import Cases, Floats, Ints, join
from ridgeline.cost.training import memory
from ridgeline.cost.training.coefficients import Coefficients
from ridgeline.cost.training.estimate import TIGHT, estimate_training
from ridgeline.cost.training.layouts import OFFLOADS, Layouts
from ridgeline.cost.training.setting import setting_of
from ridgeline.cost.training.workload import Workload
from ridgeline.hardware.cluster import Cluster
from ridgeline.models.spec import ModelSpec
from ridgeline.records.layout import Offload
from ridgeline.records.plan import Objective

OF_SHARDS = ("optimizer+parameters", "all-on-disk")
"""What goes with ZeRO-3 alone: parameters that are away are gathered layer by layer."""
FAMILY = ("tp", "pp", "cp", "ep", "etp", "zero", "schedule", "recompute", "precision", "offload")
"""Layouts that agree in these knobs, and in whether all data ranks share one shard group, are one
family; the others are tuned inside it."""
_FEW = 20_000
"""Candidates below which weeding out families costs more than it saves."""
_TOGETHER = 8192
"""Layouts that are timed at once: fewer leave numpy's calls idle, more leave a core's cache."""
_MEMORY_STEP = 0.01
"""Shares of the capacity that count as equally much memory: time decides between them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judge:
    """The cost model of one model on one cluster, bound to its arguments."""

    peak_bytes: Callable[[Layouts], Floats]
    step_seconds: Callable[[Layouts], Floats]
    limit_bytes: float
    """Peak memory above which a layout does not fit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidates(Cases):
    """Layouts with what the cost model says of each; arrays of one length."""

    layouts: Layouts
    step_seconds: Floats
    peak_bytes: Floats

    def __len__(self) -> int:
        return len(self.step_seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What one search found. `families` is sorted, the best first; both may be empty."""

    families: Candidates
    front: Candidates
    """Sorted by step time; nothing in it is both slower and bigger than another."""
    nearest: Candidates
    """The one layout of least peak memory, with nan for its time."""
    searched: int
    feasible: int


def search(
    chunks: Iterable[Layouts],
    judge: Judge,
    objective: Objective = "time",
    offload: Offload | None = None,
) -> Found:
    """Judge every layout of `chunks`; raises ValueError when there is none at all.

    Args:
        chunks: Layouts that keep everything on the device.
        judge: What the cost model says of them.
        objective: What to keep low.
        offload: How all of them are offloaded; None: as much as it takes to fit.
    """
    keeper = _Keeper(judge=judge, objective=objective)
    nearest: Candidates | None = None
    searched = 0
    judged = (
        _with_offloading(chunks, judge, always=objective == "memory")
        if offload is None
        else _offloaded(chunks, judge, offload)
    )
    for layouts, peaks in judged:
        searched += len(layouts)
        nearest = _least_memory(nearest, layouts, peaks)
        fits = peaks <= judge.limit_bytes
        if fits.any():
            keeper.add(layouts.take(fits), peaks[fits])
    if nearest is None:
        raise ValueError("there is no layout to search")
    keeper.flush()
    none = nearest.take(np.zeros(0, dtype=np.int64))
    families = best_of_families(keeper.families or none, judge.limit_bytes, objective)
    order = np.lexsort((families.peak_bytes, score(families, judge.limit_bytes, objective)))
    return Found(
        families=families.take(order),
        front=keeper.front or none,
        nearest=nearest,
        searched=searched,
        feasible=keeper.feasible,
    )


@dataclass(slots=True, kw_only=True)
class _Keeper:
    """Times what fits, many layouts at once, and keeps the best of each family and the front."""

    judge: Judge
    objective: Objective
    families: Candidates | None = None
    front: Candidates | None = None
    feasible: int = 0
    waiting: list[tuple[Layouts, Floats]] = field(default_factory=list)
    held: int = 0
    crowd: int = _FEW

    def add(self, layouts: Layouts, peaks: Floats) -> None:
        """Layouts that fit, with their peak memory."""
        self.waiting.append((layouts, peaks))
        self.held += len(layouts)
        if self.held >= _TOGETHER:
            self.flush()

    def flush(self) -> None:
        """Judge the layouts that wait."""
        if not self.waiting:
            return
        layouts = join([layouts for layouts, _ in self.waiting])
        peaks = np.concatenate([peaks for _, peaks in self.waiting])
        self.waiting, self.held = [], 0
        judged = Candidates(
            layouts=layouts, step_seconds=self.judge.step_seconds(layouts), peak_bytes=peaks
        )
        judged = judged.take(np.isfinite(judged.step_seconds))
        self.feasible += len(judged)
        best_here = best_of_families(judged, self.judge.limit_bytes, self.objective)
        self.families = best_here if self.families is None else join([self.families, best_here])
        if len(self.families) > self.crowd:
            self.families = best_of_families(self.families, self.judge.limit_bytes, self.objective)
            self.crowd = max(_FEW, 2 * len(self.families))
        front = pareto(judged)
        self.front = front if self.front is None else pareto(join([self.front, front]))


def score(candidates: Candidates, limit_bytes: float, objective: Objective) -> Floats:
    """What the objective makes small. On one cluster cost is time."""
    if objective != "memory":
        return candidates.step_seconds
    steps = np.floor(candidates.peak_bytes / (_MEMORY_STEP * limit_bytes))
    within: Floats = candidates.step_seconds / (1.0 + candidates.step_seconds)
    return steps + within


def pareto(candidates: Candidates) -> Candidates:
    """The candidates that no other beats in time and memory at once, fastest first."""
    order = np.lexsort((candidates.peak_bytes, candidates.step_seconds))
    peaks = candidates.peak_bytes[order]
    least_before = np.concatenate([[np.inf], np.minimum.accumulate(peaks)[:-1]])
    return candidates.take(order[peaks < least_before])


def best_of_families(
    candidates: Candidates, limit_bytes: float, objective: Objective
) -> Candidates:
    """The best candidate of each family."""
    codes = _family_codes(candidates.layouts)
    scores = score(candidates, limit_bytes, objective)
    order = np.lexsort((candidates.peak_bytes, scores, codes))
    first = np.ones(len(order), dtype=np.bool_)
    first[1:] = codes[order][1:] != codes[order][:-1]
    return candidates.take(order[first])


def _family_codes(layouts: Layouts) -> Ints:
    """One number per family: a multiplicative hash of its columns in 64 bits.

    Two families collide once in 2**64 pairs; a search has below 2**34 pairs.
    """
    codes = np.zeros(len(layouts), dtype=np.uint64)
    columns: list[Ints] = [getattr(layouts, name) for name in FAMILY]
    for column in [*columns, layouts.fsdp < layouts.dp * layouts.cp]:
        codes = (codes ^ column.astype(np.uint64)) * np.uint64(0x9E3779B97F4A7C15)
        codes ^= codes >> np.uint64(29)
    return codes.view(np.int64)


def _offloaded(
    chunks: Iterable[Layouts], judge: Judge, offload: Offload
) -> Iterator[tuple[Layouts, Floats]]:
    """Chunks offloaded as the user says, with their peak memory."""
    level = OFFLOADS.index(offload)
    for plain in chunks:
        some = plain
        if offload in OF_SHARDS:
            alone = plain.dp * plain.cp == 1  # with one rank to a shard, all of ZeRO is the same
            some = replace(plain, zero=np.where(alone, 3, plain.zero))
            some = some.take(some.zero == 3)
        if len(some):
            some = replace(some, offload=np.full(len(some), level, dtype=np.int64))
            yield some, judge.peak_bytes(some)


def _with_offloading(
    chunks: Iterable[Layouts], judge: Judge, *, always: bool
) -> Iterator[tuple[Layouts, Floats]]:
    """Chunks with their peak memory; then what does not fit, offloaded."""
    optimizer, everything = 1, 2
    assert OFFLOADS[optimizer] == "optimizer"
    for plain in chunks:
        peaks = judge.peak_bytes(plain)
        yield plain, peaks
        rest = plain if always else plain.take(peaks > judge.limit_bytes)
        for level in (optimizer, everything):
            if level == everything:
                rest = rest.take(rest.zero == 3)
            if not len(rest):
                break
            rest = replace(rest, offload=np.full(len(rest), level, dtype=np.int64))
            peaks = judge.peak_bytes(rest)
            yield rest, peaks
            rest = rest if always else rest.take(peaks > judge.limit_bytes)


def _least_memory(nearest: Candidates | None, layouts: Layouts, peaks: Floats) -> Candidates | None:
    if not len(layouts):
        return nearest
    at = np.array([int(np.argmin(peaks))])
    if nearest is not None and nearest.peak_bytes[0] <= peaks[at[0]]:
        return nearest
    return Candidates(
        layouts=layouts.take(at), step_seconds=np.full(1, np.nan), peak_bytes=peaks[at]
    )


def judge_of(
    model: ModelSpec,
    cluster: Cluster,
    workload: Workload,
    coefficients: Coefficients,
    *,
    tight: bool = False,
) -> Judge:
    """A judge of layouts; `tight` also admits those that only fit without fragmentation."""
    capacity = float(cluster.device.memory.usable_bytes)

    def peak_bytes(layouts: Layouts) -> Floats:
        return memory.peak_bytes(setting_of(model, cluster, workload, layouts, coefficients))

    def step_seconds(layouts: Layouts) -> Floats:
        found = estimate_training(model, cluster, workload, layouts, coefficients)
        return np.asarray(found.step_seconds)

    return Judge(
        peak_bytes=peak_bytes,
        step_seconds=step_seconds,
        limit_bytes=capacity if tight else TIGHT * capacity,
    )
