"""How many of a cluster's nodes had better be spot capacity: the trace on mixes of both."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from ridgeline.errors import InputError
from ridgeline.queue.cluster import NodeGroup, QueuedCluster, SpotTerms
from ridgeline.queue.figures import at_share, figures_of, mean_of
from ridgeline.queue.jobs import Jobs
from ridgeline.queue.simulate import play_queue, unfit_jobs
from ridgeline.records.queue_simulation import SpotMix

SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)


def spot_mixes(
    jobs: Jobs,
    cluster: QueuedCluster,
    policies: Sequence[str],
    seed: int,
    on_progress: Callable[[str], None],
) -> list[SpotMix]:
    """Cost and completion with more and more of the nodes as spot; those that hold all jobs.

    Raises:
        InputError: The cluster lacks nodes, prices or an offer of spot capacity.
    """
    offer = cluster.spot_offer
    if offer is None or not cluster.nodes:
        raise InputError(
            "--spot-mix needs [[nodes]] and a [spot_offer] in the cluster file, with"
            " interruptions_per_hour, return_hours and gpu_hour_price"
        )
    if any(cluster.price_of(group) is None for group in cluster.nodes):
        raise InputError("--spot-mix needs gpu_hour_price, of the cluster or of all its nodes")
    found = []
    for policy in policies:
        for share in SHARES:
            mixed = mixed_cluster(cluster, share)
            if unfit_jobs(jobs, mixed):
                continue
            on_progress(f"{policy}: {share:.0%} of the nodes as spot")
            played = play_queue(jobs, mixed, policy, seed=seed)
            seen = figures_of(jobs, mixed, played)
            assert seen.cost_usd is not None
            found.append(
                SpotMix(
                    policy=policy,
                    spot_share=share,
                    cost_usd=seen.cost_usd,
                    mean_completion_seconds=mean_of(seen.completions[seen.ended]),
                    p99_wait_seconds=at_share(seen.waits[seen.ended], 0.99),
                    interruptions=int(played.interruptions.sum()),
                    lost_gpu_hours=seen.lost_gpu_hours,
                )
            )
    return found


def mixed_cluster(cluster: QueuedCluster, share: float) -> QueuedCluster:
    """The cluster with a share of the nodes of every group as spot."""
    offer = cluster.spot_offer
    assert offer is not None
    terms = SpotTerms(
        interruptions_per_hour=offer.interruptions_per_hour, return_hours=offer.return_hours
    )
    groups: list[NodeGroup] = []
    for group in cluster.nodes:
        spot = round(share * group.count) if group.spot is None else 0
        if group.count > spot:
            groups.append(msgspec.structs.replace(group, count=group.count - spot))
        if spot:
            groups.append(
                msgspec.structs.replace(
                    group, count=spot, spot=terms, gpu_hour_price=offer.gpu_hour_price
                )
            )
    return msgspec.structs.replace(cluster, nodes=groups)
