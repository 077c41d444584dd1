"""One step of an estimated pipeline, block by block, for drawing.

An estimate has the step's terms summed; this cuts them back into micro-batches: what repeats with
each of them, over their number, is the mean stage's time. Of it the forward has a third and the
backward's two halves a third each (three products of equal FLOPs, see `operators.py`);
recomputation counts to the backward. Stages are drawn alike: imbalance is in the estimate's
`bubble`, not in the picture.
"""

from __future__ import annotations

from ridgeline.cost.pipeline_schedule import ChunkSeconds, Timeline, simulate
from ridgeline.records.estimate import Estimate
from ridgeline.records.layout import Schedule

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
