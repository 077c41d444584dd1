"""Pipeline schedules simulated exactly: when every block starts and ends, and what idles.

Each rank does its blocks in the order of `pipeline_order.py`, each as soon as the rank is free
and what it needs has arrived: a forward needs the forward of the part of the model before it, a
backward that of the part after it, `p2p_seconds` later when that part lives on another rank
(transfers do not hold up the sender). With uniform times the idle share is

    GPipe, 1F1B, interleaved    (p - 1) / (v m + p - 1)          Narayanan et al. 2021, section 2.2
    ZB-H1                       (p - 1) (F + B - W) / makespan     Qi et al. 2023, table 2

with F, B, W the forward and the two halves of the backward; the last line holds while W is not
the longest of the three (past that the weight halves themselves fill up and spill over).

`timeline_of` draws the step of an estimate. An estimate has the step's terms summed; this cuts them
back into micro-batches: what repeats with each of them, over their number, is the mean stage's
time. Of it the forward has a third and the backward's two halves a third each (three matmuls of
equal FLOPs, see `operators.py`); recomputation counts to the backward. Stages are drawn alike:
imbalance is in the estimate's `bubble`, not in the picture.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ridgeline.cost.pipeline_order import Kind, StageWork, work_order
from ridgeline.records.estimate import Estimate
from ridgeline.records.layout import Schedule


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkSeconds:
    """Time of one micro-batch in one model chunk (one stage, without interleaving)."""

    forward_seconds: float
    backward_input_seconds: float
    """Gradient with respect to the input; recomputation of activations counts here."""
    backward_weight_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One block of work, placed in time."""

    kind: Kind
    chunk: int
    microbatch: int
    start_seconds: float
    end_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """One step of a pipeline. Lists are by stage (rank)."""

    schedule: Schedule
    num_microbatches: int
    num_chunks: int
    blocks: tuple[tuple[Block, ...], ...]
    """In the order of work."""
    makespan_seconds: float
    busy_seconds: tuple[float, ...]
    peak_live_chunks: tuple[int, ...]
    """The most activations held at once, each of one micro-batch in one chunk: from the start of
    its forward to the end of its backward (of the weight half, where it is cut)."""

    @property
    def num_stages(self) -> int:
        """Ranks of the pipeline."""
        return len(self.blocks)

    @property
    def bubble_fraction(self) -> float:
        """Share of all ranks' time between the first start and the last end that is idle."""
        if not self.makespan_seconds:
            return 0.0
        return 1.0 - sum(self.busy_seconds) / (self.makespan_seconds * self.num_stages)

    @property
    def peak_live_microbatches(self) -> tuple[float, ...]:
        """Peak activations per stage, in units of one micro-batch through the whole stage."""
        return tuple(chunks / self.num_chunks for chunks in self.peak_live_chunks)


def bubble_fraction(num_stages: int, num_microbatches: int, num_chunks: int = 1) -> float:
    """Idle share of GPipe, 1F1B and interleaved 1F1B with uniform times and free transfers.

    >>> bubble_fraction(8, 32), bubble_fraction(8, 32, 4)
    (0.1794871794871795, 0.05185185185185185)

    Raises:
        ValueError: Any of the three is below 1.
    """
    if min(num_stages, num_microbatches, num_chunks) < 1:
        raise ValueError("stages, micro-batches and chunks must each be 1 or more")
    return (num_stages - 1) / (num_chunks * num_microbatches + num_stages - 1)


def simulate(
    schedule: Schedule,
    *,
    num_stages: int,
    num_microbatches: int,
    seconds: ChunkSeconds | Sequence[ChunkSeconds],
    num_chunks: int = 1,
    p2p_seconds: float = 0.0,
) -> Timeline:
    """One step of a schedule, block by block.

    `seconds` is one time for all, or one for each of the p · v chunks in the model's order (chunk
    c of rank r is number c · p + r).

    >>> each = ChunkSeconds(
    ...     forward_seconds=1.0, backward_input_seconds=1.0, backward_weight_seconds=1.0
    ... )
    >>> step = simulate("1f1b", num_stages=4, num_microbatches=8, seconds=each)
    >>> step.makespan_seconds, round(step.bubble_fraction, 4), step.peak_live_microbatches
    (33.0, 0.2727, (4.0, 3.0, 2.0, 1.0))
    """
    places = num_stages * num_chunks
    times = [seconds] * places if isinstance(seconds, ChunkSeconds) else list(seconds)
    if len(times) != places:
        raise ValueError(
            f"{num_stages} stages of {num_chunks} chunks need {places} times, not {len(times)}"
        )
    order = work_order(
        schedule,
        num_stages=num_stages,
        num_microbatches=num_microbatches,
        num_chunks=num_chunks,
    )
    blocks = _place(order, times, p2p_seconds)
    return Timeline(
        schedule=schedule,
        num_microbatches=num_microbatches,
        num_chunks=num_chunks,
        blocks=tuple(tuple(stage) for stage in blocks),
        makespan_seconds=max(stage[-1].end_seconds for stage in blocks),
        busy_seconds=tuple(
            sum(block.end_seconds - block.start_seconds for block in stage) for stage in blocks
        ),
        peak_live_chunks=tuple(_peak_live(stage) for stage in blocks),
    )


def _place(
    order: Sequence[Sequence[StageWork]], times: Sequence[ChunkSeconds], p2p_seconds: float
) -> list[list[Block]]:
    """Walk all ranks until nothing is left; a round in which nothing can start is a deadlock."""
    num_stages = len(order)
    ends: dict[tuple[str, int, int], float] = {}
    blocks: list[list[Block]] = [[] for _ in order]
    free = [0.0] * num_stages
    left = sum(len(stage) for stage in order)
    while left:
        before = left
        for rank, stage in enumerate(order):
            while len(blocks[rank]) < len(stage):
                work = stage[len(blocks[rank])]
                place = work.chunk * num_stages + rank
                ready = _ready(work, place, len(times), num_stages, ends, p2p_seconds)
                if ready is None:
                    break
                start = max(free[rank], ready)
                free[rank] = start + _length(work.kind, times[place])
                ends[_direction(work.kind), place, work.microbatch] = free[rank]
                blocks[rank].append(
                    Block(
                        kind=work.kind,
                        chunk=work.chunk,
                        microbatch=work.microbatch,
                        start_seconds=start,
                        end_seconds=free[rank],
                    )
                )
                left -= 1
        assert left < before, "the order of work deadlocks"
    return blocks


def _ready(
    work: StageWork,
    place: int,
    num_places: int,
    num_stages: int,
    ends: dict[tuple[str, int, int], float],
    p2p_seconds: float,
) -> float | None:
    """When what the block needs has arrived; None: it has not been computed yet."""
    travel = p2p_seconds if num_stages > 1 else 0.0
    if work.kind == "forward":
        if place == 0:
            return 0.0
        end = ends.get(("forward", place - 1, work.microbatch))
    elif work.kind == "weight":
        end, travel = ends.get(("backward", place, work.microbatch)), 0.0
    elif place == num_places - 1:
        end, travel = ends.get(("forward", place, work.microbatch)), 0.0
    else:
        end = ends.get(("backward", place + 1, work.microbatch))
    return None if end is None else end + travel


def _direction(kind: Kind) -> str:
    """What others wait for: the input half is as good as the whole backward."""
    return "backward" if kind == "input" else kind


def _length(kind: Kind, times: ChunkSeconds) -> float:
    if kind == "forward":
        return times.forward_seconds
    if kind == "input":
        return times.backward_input_seconds
    if kind == "weight":
        return times.backward_weight_seconds
    return times.backward_input_seconds + times.backward_weight_seconds


def _peak_live(stage: Sequence[Block]) -> int:
    """A rank does one block at a time, so that the order alone decides what is alive."""
    live = peak = 0
    for block in stage:
        if block.kind == "forward":
            live += 1
            peak = max(peak, live)
        elif block.kind in ("backward", "weight"):
            live -= 1
    return peak


ONCE_PER_STEP = ("bubble", "data", "optimizer", "straggle")
"""Terms that no micro-batch repeats."""


def timeline_of(estimate: Estimate) -> Timeline | None:
    """The pipeline part of the step; None where there is none.

    None, too, for interleaving whose last group has fewer micro-batches than there are stages:
    `pipeline_order.py` has no order for that.
    """
    layout = estimate.layout
    microbatches = layout.num_microbatches
    schedule: Schedule = "interleaved" if layout.vpp > 1 else layout.schedule
    if layout.pp == 1 or (schedule == "interleaved" and microbatches % layout.pp):
        return None
    repeated = sum(
        seconds for term, seconds in estimate.breakdown.items() if term not in ONCE_PER_STEP
    )
    again = estimate.breakdown.get("recompute", 0.0)
    blocks = microbatches * layout.vpp
    third = (repeated - again) / 3.0 / blocks
    return simulate(
        schedule,
        num_stages=layout.pp,
        num_microbatches=microbatches,
        num_chunks=layout.vpp,
        seconds=ChunkSeconds(
            forward_seconds=third,
            backward_input_seconds=third + again / blocks,
            backward_weight_seconds=third,
        ),
    )
