"""Size of the buckets in which DistributedDataParallel reduces gradients.

Larger buckets use the links better, smaller ones start earlier and hide behind the backward;
25 MiB is PyTorch's default, right for neither very small nor very large models.
"""

from __future__ import annotations

from ridgeline.records.ledger import Options
from ridgeline.techniques import Applicability, Card, Context, Gain, Stage, amdahl
from ridgeline.techniques.kinds.argument import set_argument

CARD = Card(
    name="ddp-buckets",
    title="DDP bucket size",
    cures=("exposed-communication",),
    costs="Memory of the buckets; sums across ranks are rounded in another order.",
    source="Li et al., PyTorch Distributed, VLDB 2020, section 3.2.3",
    equivalence="rounding",
    stage=Stage.COMMUNICATION,
    required={"bucket_mib": int},
)

_SIZES_MIB = (100, 8)


def applies(context: Context) -> Applicability:
    """DDP over several ranks, whose communication is felt."""
    if not context.data_parallel_models:
        return Applicability(False, "no model is wrapped in DistributedDataParallel")
    if context.profile.world_size < 2:
        return Applicability(False, "one process has nobody to reduce gradients with")
    share = context.phase_share("communication")
    if share < 0.03:
        return Applicability(False, f"{share:.1%} of a step is communication that nothing hides")
    if not options(context):
        return Applicability(False, "all gradients fit one small bucket")
    return Applicability(True, "")


def options(context: Context) -> list[Options]:
    """Sizes that split this model's gradients in another way than 25 MiB does."""
    gradients_mib = max((m.parameter_bytes for m in context.profile.models), default=0) / 2**20
    return [{"bucket_mib": size} for size in _SIZES_MIB if gradients_mib > min(size, 25)]


def predict(context: Context, options: Options) -> Gain:
    """Some of the exposed communication hides."""
    return amdahl(context.phase_share("communication"), 0.95, 1.4)


apply, edits = set_argument(
    CARD, "DistributedDataParallel", "bucket_cap_mb", lambda options: int(options["bucket_mib"])
)
