"""Gradients that live inside the buckets in which DistributedDataParallel reduces them.

Without it every gradient is copied into its bucket before the reduction and out of it after, and
the buckets are a second copy of all gradients. With it `p.grad` is a view of the bucket, so code
that detaches gradients in place fails.
"""

from __future__ import annotations

from ridgeline.records.ledger import Options
from ridgeline.techniques import Applicability, Card, Context, Gain, Stage, amdahl
from ridgeline.techniques.kinds.argument import set_argument

CARD = Card(
    name="ddp-bucket-view",
    title="Gradients as views of DDP's buckets",
    cures=("exposed-communication", "memory-limit"),
    costs="Gradients may not be detached in place.",
    source="PyTorch documentation, DistributedDataParallel, gradient_as_bucket_view",
    equivalence="rounding",
    stage=Stage.COMMUNICATION,
)


def applies(context: Context) -> Applicability:
    """DDP over several ranks that copies gradients into buckets."""
    wrapped = context.data_parallel_models
    if not wrapped:
        return Applicability(False, "no model is wrapped in DistributedDataParallel")
    if all(model.ddp_bucket_view for model in wrapped):
        return Applicability(False, "gradients are views of the buckets")
    if context.profile.world_size < 2:
        return Applicability(False, "one process has nobody to reduce gradients with")
    return Applicability(True, "")


def predict(context: Context, options: Options) -> Gain:
    """Two passes over the gradients less, out of memory."""
    gradients_bytes = max(m.parameter_bytes for m in context.profile.models)
    bandwidth = context.ceilings.bandwidth_bytes_per_second if context.ceilings else 20e9
    share = 4 * gradients_bytes / bandwidth / context.profile.step_seconds.mean
    return amdahl(min(share, context.phase_share("backward", "communication")), 1.0, 20.0)


apply, edits = set_argument(CARD, "DistributedDataParallel", "gradient_as_bucket_view", True)
