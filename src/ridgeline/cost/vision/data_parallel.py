"""One step of data-parallel training: every device its own images, one all-reduce of gradients.

    step = max(compute, input) + exposed all-reduce + wait for the slowest device

Gradients travel in buckets while the backward pass still runs (Li et al., "PyTorch Distributed",
2006.15704, section 3.2.3), so only what outlasts a share of that pass is exposed, and no less than
the last bucket; what is hidden slows the pass that hides it (`contention`). Loading runs beside the
step: a step is as long as the slower of the two. Nobody has reduced gradients before the slowest
device has: a step takes the largest of as many times as there are devices, each of which varies by
`STEP_SPREAD`.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist

from ridgeline.cost.collective_volume import Fabric, all_reduce_seconds

LAST_BUCKET = 0.05
"""The share of the gradient traffic that is never hidden."""
BACKWARD_SHARE = 2.0 / 3.0
"""The share of a step that its backward pass takes: two of three passes of about one length."""
STEP_SPREAD = 0.037
"""Standard deviation of a device's steps, as a share of their mean: the median over 108 published
rates of 2 to 16 GPUs (NVIDIA's and Lambda's), each beside the same on one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlap:
    """How communication and computation share a step."""

    share: float
    """Share of the backward pass under which gradients travel."""
    contention: float
    """Slowdown of the computation beside it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelStep:
    """One step on every device of a cluster; the parts add up to `seconds`."""

    compute_seconds: float
    communication_seconds: float
    """Exposed alone, with the slowdown of what hides the rest and the wait for the slowest."""
    waiting_seconds: float
    """What the step waits for its images."""
    all_reduce_seconds: float
    """In all, hidden or not."""

    @property
    def seconds(self) -> float:
        """The length of the whole step."""
        return self.compute_seconds + self.communication_seconds + self.waiting_seconds


def parallel_step(
    compute_seconds: float,
    gradient_bytes: float,
    num_devices: int,
    fabric: Fabric,
    overlap: Overlap,
    *,
    input_seconds: float = 0.0,
) -> ParallelStep:
    """A step whose forward, backward and optimizer take `compute_seconds` on one device.

    >>> fabric = Fabric(
    ...     domain_size=8, domain_bytes_per_second=200e9, network_bytes_per_second=20e9
    ... )
    >>> overlap = Overlap(share=0.8, contention=0.1)
    >>> step = parallel_step(0.1, 1e8, 8, fabric, overlap)
    >>> round(step.all_reduce_seconds, 6), round(step.seconds, 6)
    (0.000875, 0.105433)
    """
    reduced = all_reduce_seconds(num_devices, gradient_bytes, fabric) if num_devices > 1 else 0.0
    hiding = overlap.share * BACKWARD_SHARE * compute_seconds
    exposed = max(reduced - hiding, LAST_BUCKET * reduced)
    communication = exposed + overlap.contention * (reduced - exposed)
    communication += STEP_SPREAD * slowest_of(num_devices) * compute_seconds
    return ParallelStep(
        compute_seconds=compute_seconds,
        communication_seconds=communication,
        waiting_seconds=max(0.0, input_seconds - compute_seconds - communication),
        all_reduce_seconds=reduced,
    )


def slowest_of(num_devices: int) -> float:
    """The largest of so many normal deviates, on average (Blom, "Statistical Estimates", 1958).

    >>> [round(slowest_of(count), 2) for count in (1, 2, 8, 512)]
    [0.0, 0.59, 1.43, 3.03]
    """
    return NormalDist().inv_cdf((num_devices - 0.375) / (num_devices + 0.25))
