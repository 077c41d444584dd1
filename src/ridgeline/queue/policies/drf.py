"""Dominant resource fairness over GPUs, cores and memory, in a tree of queues.

Ghodsi et al., NSDI 2011; in a tree, Bhattacharya et al., SoCC 2013. Where jobs ask for GPUs alone
it is `fair`.
"""

from __future__ import annotations

from collections.abc import Sequence

from ridgeline.queue.policies import PolicyCard
from ridgeline.queue.policies.fair import WeightedFairShares
from ridgeline.queue.share_tree import Amounts

CARD = PolicyCard(
    title="the queue whose largest share of GPUs, cores or memory is smallest, for its weight",
    source="Ghodsi et al., NSDI 2011; Bhattacharya et al., SoCC 2013",
)


class DominantResourceFairness(WeightedFairShares):
    """GPUs, cores and GiB of memory are the resources."""

    def capacity(self) -> Sequence[float]:
        """All of the cluster; 0 of what it does not count."""
        cluster = self.state.cluster
        if not cluster.nodes:
            return (cluster.gpus, cluster.cpus or 0.0, cluster.memory_gibibytes or 0.0)
        cpus = sum(one.count * (one.cpus or 0.0) for one in cluster.nodes)
        memory = sum(one.count * (one.memory_gibibytes or 0.0) for one in cluster.nodes)
        return (cluster.num_gpus, cpus, memory)

    def amounts(self, job: int) -> Amounts:
        """What a job asks for."""
        wants = self.state.wants[job]
        return (self.state.size[job], wants.cpus, wants.memory_bytes / 2**30)


POLICY = DominantResourceFairness
