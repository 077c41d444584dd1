"""A step of data-parallel training on a cluster, at the rates that its links attain.

The step itself is `cost/vision/data_parallel.py`; what a device's links attain of what they are
sold as comes from the runs of language models (`plan/training/coefficients.py`).
"""

from __future__ import annotations

from ridgeline.cost.collective_volume import Fabric
from ridgeline.cost.vision.data_parallel import Overlap, ParallelStep, parallel_step
from ridgeline.hardware.cluster import Cluster
from ridgeline.models.vision.network import VisionNetwork
from ridgeline.plan.training.coefficients import coefficients_for

GRADIENT_BYTES = 4
"""Gradients of 32-bit weights, which is what DistributedDataParallel reduces."""
HALVINGS = 40
"""Bisections that find a float's last digits."""


def step_on(
    cluster: Cluster,
    network: VisionNetwork,
    compute_seconds: float,
    *,
    passes: int = 1,
    overlap: float | None = None,
    input_seconds: float = 0.0,
) -> ParallelStep:
    """The step whose passes and optimizer take `compute_seconds` on one device.

    Args:
        cluster: The devices, each with images of its own, and their links.
        network: Whose gradients are reduced.
        compute_seconds: All passes of one device.
        passes: Gradients travel under the last of them.
        overlap: Share of the backward pass under which they travel; None: as published
            runs have it.
        input_seconds: The least time in which the images of a step are ready.
    """
    rates = coefficients_for(cluster.device)
    inside = cluster.joined_bytes_per_second(cluster.num_devices)
    fabric = Fabric(
        domain_size=cluster.domain_size,
        domain_bytes_per_second=inside * float(rates.domain),
        network_bytes_per_second=(
            cluster.network_bytes_per_second * float(rates.network) / cluster.oversubscription
        ),
        domain_latency_seconds=cluster.domain_latency_seconds * float(rates.bulk_latency),
        network_latency_seconds=cluster.network_latency_seconds * float(rates.bulk_latency),
    )
    share = float(rates.data_overlap) if overlap is None else overlap
    return parallel_step(
        compute_seconds,
        float(GRADIENT_BYTES * network.parameters),
        cluster.num_devices,
        fabric,
        Overlap(share=share / passes, contention=float(rates.contention)),
        input_seconds=input_seconds,
    )


def compute_within(cluster: Cluster, network: VisionNetwork, step_seconds: float) -> float:
    """What one device computes in a step of that length: the inverse of `step_on`.

    >>> from ridgeline.hardware.cluster import parse_cluster
    >>> from ridgeline.models import load_network
    >>> pair, network = parse_cluster("2xRTX-3090"), load_network("resnet50")
    >>> found = compute_within(pair, network, 0.1)
    >>> found < 0.1, round(step_on(pair, network, found).seconds, 6)
    (True, 0.1)
    """
    if cluster.num_devices == 1:
        return step_seconds
    low, high = 0.0, step_seconds
    for _ in range(HALVINGS):
        middle = (low + high) / 2.0
        if step_on(cluster, network, middle).seconds < step_seconds:
            low = middle
        else:
            high = middle
    return high
