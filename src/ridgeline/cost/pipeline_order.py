"""In which order each pipeline stage works: GPipe, 1F1B, interleaved 1F1B, zero-bubble ZB-H1.

    gpipe        all forwards, then all backwards                     Huang et al. 2019, 1811.06965
    1f1b         p - 1 - rank forwards, then one forward, one backward      Narayanan et al. 2021,
    interleaved  the same over v model chunks per rank, p micro-batches     2104.04473, section 2.2
                 of a chunk at a time
    zero-bubble  1F1B with the backward cut into its input and weight       Qi et al. 2023,
                 halves; rank r lags r weight halves behind (ZB-H1)         2401.10241, section 2

`p` ranks, `m` micro-batches, `v` chunks. An order says nothing about time: see
`pipeline_schedule.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ridgeline.records.layout import Schedule

Kind = Literal["forward", "backward", "input", "weight"]
"""`backward` is the whole of it; `input` and `weight` are its halves, the gradients with respect
to the layer's input and to its weights."""


@dataclass(frozen=True, slots=True)
class StageWork:
    """One block of work of one rank."""

    kind: Kind
    chunk: int
    """Which of the rank's model chunks, 0 the nearest to the model's input."""
    microbatch: int


def work_order(
    schedule: Schedule, *, num_stages: int, num_microbatches: int, num_chunks: int = 1
) -> list[list[StageWork]]:
    """What each rank does, in order.

    >>> order = work_order("1f1b", num_stages=2, num_microbatches=2)
    >>> [(work.kind, work.microbatch) for work in order[0]]
    [('forward', 0), ('forward', 1), ('backward', 0), ('backward', 1)]
    >>> [(work.kind, work.microbatch) for work in order[1]]
    [('forward', 0), ('backward', 0), ('forward', 1), ('backward', 1)]
    """
    if min(num_stages, num_microbatches, num_chunks) < 1:
        raise ValueError("a pipeline has at least one stage, one micro-batch and one chunk")
    ranks = range(num_stages)
    if schedule == "interleaved":
        if num_microbatches % num_stages:
            raise ValueError(
                f"interleaving needs a multiple of {num_stages} micro-batches (one group per"
                f" stage), not {num_microbatches}"
            )
        return [_interleaved(rank, num_stages, num_microbatches, num_chunks) for rank in ranks]
    if num_chunks > 1:
        raise ValueError(f"{schedule} has one chunk per stage; {num_chunks} need interleaved")
    if schedule == "gpipe":
        return [_gpipe(num_microbatches) for _ in ranks]
    if schedule == "1f1b":
        return [_one_forward_one_backward(rank, num_stages, num_microbatches) for rank in ranks]
    return [_zero_bubble(rank, num_stages, num_microbatches) for rank in ranks]


def _gpipe(num_microbatches: int) -> list[StageWork]:
    forwards = [StageWork("forward", 0, index) for index in range(num_microbatches)]
    return forwards + [StageWork("backward", 0, index) for index in range(num_microbatches)]


def _one_forward_one_backward(rank: int, num_stages: int, num_microbatches: int) -> list[StageWork]:
    warm = min(num_stages - 1 - rank, num_microbatches)
    work = [StageWork("forward", 0, index) for index in range(warm)]
    for index in range(num_microbatches):
        if warm + index < num_microbatches:
            work.append(StageWork("forward", 0, warm + index))
        work.append(StageWork("backward", 0, index))
    return work


def _interleaved(
    rank: int, num_stages: int, num_microbatches: int, num_chunks: int
) -> list[StageWork]:
    """Groups of p micro-batches pass chunk after chunk; backwards meet the chunks in reverse."""
    visits = [
        (chunk, start + offset)
        for start in range(0, num_microbatches, num_stages)
        for chunk in range(num_chunks)
        for offset in range(num_stages)
    ]
    total = len(visits)
    warm = min((num_stages - 1 - rank) * 2 + (num_chunks - 1) * num_stages, total)
    work = [StageWork("forward", chunk, index) for chunk, index in visits[:warm]]
    for place, (chunk, index) in enumerate(visits):
        if warm + place < total:
            work.append(StageWork("forward", *visits[warm + place]))
        work.append(StageWork("backward", num_chunks - 1 - chunk, index))
    return work


def _zero_bubble(rank: int, num_stages: int, num_microbatches: int) -> list[StageWork]:
    """1F1B's order of forwards and input halves; weight halves fill in, `rank` behind."""
    work: list[StageWork] = []
    for block in _one_forward_one_backward(rank, num_stages, num_microbatches):
        if block.kind == "forward":
            work.append(block)
            continue
        work.append(StageWork("input", 0, block.microbatch))
        if block.microbatch >= rank:
            work.append(StageWork("weight", 0, block.microbatch - rank))
    left = range(max(num_microbatches - rank, 0), num_microbatches)
    return work + [StageWork("weight", 0, index) for index in left]
