"""Time of collectives over a cluster of fast domains joined by a network.

Ring algorithms move (n-1)/n of the full buffer through every link for an all-gather or a
reduce-scatter and twice that for an all-reduce (Thakur, Rabenseifner, Gropp, "Optimization of
collective communication operations in MPICH", 2005, sections 4.1 and 4.5), in n-1 steps each. A
group that spans domains leaves each of them through the network cards of its members there:
bandwidth = ranks in the domain x bandwidth per device, at most what the domain itself carries.
Trees need 2·log2(n) steps and no more bandwidth, so all-reduces over the network use the cheaper.
Large messages pass both kinds of links at once, tensor parallelism's one after the other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ridgeline.cost.arrays import Floats, Ints
from ridgeline.cost.training.setting import Setting

TIERED_NETWORK_SHARE = 0.9
"""The share of a card's line rate that a hierarchical dispatch reaches: of 50 GB/s 45 leave the
domain with two domains and 46 with four (DeepEP, README of 2026, table "Performance", own domain's
part of the printed bandwidth taken off)."""
Numbers = NDArray[np.floating[Any]] | Ints
"""What arithmetic on layouts gives: the type checker cannot tell that it is always of 64 bits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """A group of communicating ranks."""

    size: Floats
    local: Floats
    """Ranks of the group within one fast domain."""

    @property
    def nodes(self) -> Floats:
        """Domains that the group spans."""
        return np.maximum(self.size / self.local, 1.0)


def group_of(setting: Setting, size: Numbers, stride: Numbers) -> Group:
    """The group of ranks `stride` apart: tensor ranks are innermost, other groups lie between."""
    ranks = np.asarray(size, dtype=np.float64)
    local = np.clip(np.floor(setting.site.domain_size / stride), 1.0, ranks)
    return Group(size=ranks, local=local)


def network_rate(setting: Setting, group: Group) -> Floats:
    """Bytes per second and device that a collective over these domains gets from the network."""
    rates = setting.rates
    loss = 1.0 + rates.congestion * np.log2(group.nodes)
    return setting.site.network_bytes_per_second * rates.network / loss


def _domain_rate(setting: Setting, members: Floats | float) -> Floats:
    """One device's bandwidth to so many members of its domain; in a mesh each has its own links."""
    links = (np.maximum(members, 2.0) - 1.0) / setting.site.linked_peers
    return np.asarray(setting.site.domain_bytes_per_second * np.minimum(links, 1.0))


def bus_rate(setting: Setting, group: Group, *, serial: bool = False) -> Floats:
    """Bytes per second through the slowest link of a ring over the group.

    With `serial`, the way inside a domain and the way between domains follow one another: a
    collective that stands alone between two matmuls is cut into too few pieces for both to run
    beside each other.
    """
    inside = _domain_rate(setting, group.local) * setting.rates.domain
    across = np.minimum(group.local * network_rate(setting, group), inside)
    if serial:
        across = 1.0 / (1.0 / across + 1.0 / inside)
    return np.where(group.size > group.local, across, inside)


def _steps_seconds(setting: Setting, group: Group) -> Floats:
    """Latency of the n-1 steps of a ring."""
    site = setting.site
    crossings = np.where(group.size > group.local, group.nodes, 0.0)
    inside = np.maximum(group.size - 1.0 - crossings, 0.0)
    least = inside * site.domain_latency_seconds + crossings * site.network_latency_seconds
    return setting.rates.bulk_latency * least


def gather_seconds(
    setting: Setting,
    whole_bytes: Floats,
    group: Group,
    messages: Floats | float = 1.0,
    *,
    serial: bool = False,
) -> Floats:
    """All-gathers, or reduce-scatters, of `whole_bytes` in all over the group."""
    share = (group.size - 1.0) / group.size
    moved = share * whole_bytes / bus_rate(setting, group, serial=serial)
    waited = messages * _steps_seconds(setting, group)
    return np.where(group.size > 1.0, moved + waited, 0.0)


def all_reduce_seconds(
    setting: Setting,
    whole_bytes: Floats,
    group: Group,
    messages: Floats | float = 1.0,
    *,
    serial: bool = False,
) -> Floats:
    """All-reduces of `whole_bytes` in all on every rank."""
    share = 2.0 * (group.size - 1.0) / group.size
    moved = share * whole_bytes / bus_rate(setting, group, serial=serial)
    ring = 2.0 * _steps_seconds(setting, group)
    depth = 2.0 * np.log2(np.maximum(group.nodes, 1.0)) * setting.site.network_latency_seconds
    tree = depth + 2.0 * group.local * setting.site.domain_latency_seconds
    waited = messages * np.minimum(ring, setting.rates.bulk_latency * tree)
    return np.where(group.size > 1.0, moved + waited, 0.0)


def dispatch_seconds(setting: Setting, token_bytes: Floats, copies: Floats, group: Group) -> Floats:
    """Tokens of `token_bytes` in all, each to `copies` random ranks: an all-to-all.

    Of copies to experts spread evenly, copies·(1 - 1/nodes) cross the network. A hierarchical
    dispatch sends a token once to each domain that it has an expert in, and copies it to its ranks
    there over the fast fabric (DeepSeek-V3, arXiv 2412.19437, section 3.2.2): with experts spread
    evenly that is (nodes - 1)·(1 - (1 - 1/nodes)^copies) crossings. Over the fabric go
    copies·(n - 1)/n messages. Both run side by side.
    """
    reach = setting.rates.all_to_all
    nodes = group.nodes
    once = (nodes - 1.0) * (1.0 - (1.0 - 1.0 / nodes) ** copies)
    tiered = setting.software.hierarchical_dispatch
    crossings = np.where(tiered, once, copies * (1.0 - 1.0 / nodes))
    inside = _domain_rate(setting, group.local) * reach
    line = setting.site.network_bytes_per_second * TIERED_NETWORK_SHARE
    across = np.where(tiered, line, network_rate(setting, group))
    local = token_bytes * copies * (group.size - 1.0) / group.size / inside
    remote = token_bytes * crossings / across
    latency = setting.site.domain_latency_seconds + np.where(
        group.size > group.local, setting.site.network_latency_seconds, 0.0
    )
    return np.where(group.size > 1.0, np.maximum(local, remote) + latency, 0.0)


def send_seconds(setting: Setting, message_bytes: Floats, crosses: Floats) -> Floats:
    """One message to the neighbour, inside the domain or (`crosses` is 1) over the network."""
    site, rates = setting.site, setting.rates
    inside = _domain_rate(setting, 2.0) * rates.domain
    across = site.network_bytes_per_second * rates.network
    latency = np.where(crosses > 0, site.network_latency_seconds, site.domain_latency_seconds)
    return message_bytes / np.where(crosses > 0, across, inside) + latency
