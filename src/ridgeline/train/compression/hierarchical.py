"""The mean on two levels: within each node first, so that little crosses between nodes.

    reduce-scatter   inside the node: each of its d ranks has 1/d of the node's sum
    all-reduce       of that part, among the ranks with the same part on the m nodes
    all-gather       inside the node

Each rank sends 2(m-1)/m · S/d between nodes where a ring over all would carry 2(n-1)/n · S through
every node's cards (Mikami et al., "Massively distributed SGD", arXiv 1811.05233). With 16-bit
compression the part between nodes travels in 16 bits.
"""

from __future__ import annotations

import torch
import torch.distributed as dist

from ridgeline.errors import InputError
from ridgeline.train.compression.bucket import Bucket, GradientScheme
from ridgeline.train.compression.counted import CountedGroup, Traffic
from ridgeline.train.ranks import Ranks


class Hierarchical(GradientScheme):
    """The mean over nodes of the means within them."""

    def __init__(self, dtype: torch.dtype, inside: CountedGroup, across: CountedGroup) -> None:
        self._dtype = dtype
        self._inside = inside
        self._across = across

    def reduce(self, bucket: Bucket) -> None:
        """Reduce inside the node, then across nodes, then share inside the node."""
        length = bucket.buffer.numel()
        short = -length % self._inside.size
        whole = torch.nn.functional.pad(bucket.buffer, (0, short))
        whole /= self._inside.size * self._across.size
        part = self._inside.reduce_scatter(whole)
        sent = part.to(self._dtype)
        self._across.all_reduce(sent)
        part.copy_(sent)
        bucket.buffer.copy_(self._inside.all_gather(part).view(-1)[:length])

    def take(self) -> tuple[Traffic, Traffic]:
        """What this rank sent since the last call: inside the node, between nodes."""
        return self._inside.take(), self._across.take()


def two_levels(ranks: Ranks, group: dist.ProcessGroup) -> tuple[CountedGroup, CountedGroup]:
    """The groups of this rank inside its node and across nodes. Every process must call it."""
    members = dist.get_process_group_ranks(group)
    nodes: dict[int, list[int]] = {}
    for rank in members:
        nodes.setdefault(rank // ranks.local_world, []).append(rank)
    sizes = {len(node) for node in nodes.values()}
    if len(members) != ranks.world or len(sizes) != 1:
        raise InputError(
            "communication.hierarchical needs as many data-parallel ranks on every node, and no"
            f" other kind of parallelism; here nodes have {sorted(sizes)} of {ranks.world} ranks"
        )
    inside, _ = dist.new_subgroups_by_enumeration(list(nodes.values()))
    columns = [list(column) for column in zip(*nodes.values(), strict=True)]
    across, _ = dist.new_subgroups_by_enumeration(columns)
    return CountedGroup(inside), CountedGroup(across)
