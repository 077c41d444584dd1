"""What joins the devices of one replica: a fabric, the network between nodes, or a host's bus."""

from __future__ import annotations

from ridgeline.hardware import catalogue
from ridgeline.hardware.cluster import Cluster, parse_cluster
from ridgeline.hardware.facts import Device


def link_bytes_per_second(device: Device, tp: int) -> float:
    """Between the ranks of one replica: the fabric, or the host's bus where it does not join all.

    >>> from ridgeline.hardware import device
    >>> link_bytes_per_second(device("h100"), 8) / 1e9
    450.0
    >>> round(link_bytes_per_second(device("h100"), 16) / 1e9)
    293
    """
    cluster = parse_cluster(f"{tp}x{device.name}")
    own = catalogue.peer_bandwidth_bytes_per_second(device) == cluster.domain_bytes_per_second
    if own and tp > cluster.domain_size > 1 and tp % cluster.domain_size == 0:
        return _over_nodes(cluster, tp // cluster.domain_size)
    if tp > 1 and tp > cluster.domain_size:
        return cluster.host_bytes_per_second
    return cluster.joined_bytes_per_second(tp)


def _over_nodes(cluster: Cluster, nodes: int) -> float:
    """The rate of one ring that takes as long as an all-reduce inside of nodes and across them.

    Each device has summed its part of the buffer when that leaves the node over the device's own
    card (Mikami et al., arXiv 1811.05233, section 3.2).
    """
    size = cluster.domain_size
    inside = (size - 1) / size / cluster.domain_bytes_per_second
    across = (nodes - 1) / nodes / size / cluster.network_bytes_per_second
    ranks = size * nodes
    return (ranks - 1) / ranks / (inside + across)


def is_joined(device: Device, tp: int) -> bool:
    """Whether a fabric of their own joins the ranks of one replica, not the host's bus."""
    cluster = parse_cluster(f"{tp}x{device.name}")
    own = catalogue.peer_bandwidth_bytes_per_second(device)
    return own == cluster.domain_bytes_per_second and (tp == 1 or tp <= cluster.domain_size)
