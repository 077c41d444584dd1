"""The cluster of a run: so many devices of one kind, grouped in fast domains, joined by a network.

`parse_cluster("64xH100")` gives a typical cluster of that device; everything it assumes is in
`assumed`, and every field can be overridden.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass, replace

from ridgeline import quantity
from ridgeline.errors import InputError
from ridgeline.hardware import catalogue
from ridgeline.hardware.facts import Device, Link, Node
from ridgeline.hardware.instances import instance
from ridgeline.hardware.nodes import FALLBACK_HOST_LINK, node_of

_FALLBACK_LATENCY_LINK = "nvlink-4"
TYPICAL_DISK_BYTES_PER_SECOND = 1.6e9
"""One GPU's share of a DGX-2's NVMe drives, either way (Rajbhandari et al., "ZeRO-Infinity", arXiv
2104.07857, figure 2b)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """`num_devices` of one `device`. Bandwidths are per device and direction, before efficiency."""

    device: Device
    num_devices: int
    domain_size: int
    """Devices that the fast fabric (NVLink, Infinity Fabric) joins: 8 in a DGX, 72 in an NVL72."""
    domain_bytes_per_second: float
    domain_latency_seconds: float
    linked_peers: int = 1
    """Peers among which a device's links in the domain are split; 1: a switch joins them."""
    network_bytes_per_second: float
    """Bandwidth of one device's share of its node's network cards."""
    network_latency_seconds: float
    oversubscription: float = 1.0
    """How many times less bandwidth the network's core has than its edge."""
    host_bytes_per_second: float
    """Device to host memory, for offloading."""
    disk_read_bytes_per_second: float
    """One device's share of what its node's local disks read, for an optimizer's state there."""
    disk_write_bytes_per_second: float
    assumed: tuple[str, ...] = ()
    """What was not given but taken as typical, one sentence each."""

    def joined_bytes_per_second(self, devices: int) -> float:
        """Bandwidth of one device to the others in a group of so many of one domain.

        Links of a full mesh lead to one peer each: of seven, a pair has one, 64 GB/s each way
        (ROCm documentation, "AMD Instinct MI300X system optimization").

        >>> parse_cluster("8xMI300X").joined_bytes_per_second(2) / 1e9
        64.0
        """
        return self.domain_bytes_per_second * min(1.0, (max(devices, 2) - 1) / self.linked_peers)


def gigabits(per_second: float | None) -> float | None:
    """Bytes per second of a rate in Gbit/s, as networks are sold.

    >>> gigabits(400.0)
    50000000000.0
    """
    return None if per_second is None else per_second * 1e9 / 8


def parse_cluster(
    text: str,
    *,
    domain_size: int | None = None,
    domain_bytes_per_second: float | None = None,
    network_bytes_per_second: float | None = None,
    oversubscription: float | None = None,
) -> Cluster:
    """The cluster that `COUNTxDEVICE` means, with typical surroundings unless given.

    Args:
        text: A count, an x, and a device by any of its names, or a machine by its: `64xH100`,
            `8 x A100-SXM-40GB`, `2xp5.48xlarge`.
        domain_size: Devices that the fast fabric joins.
        domain_bytes_per_second: Of one device into that fabric, per direction.
        network_bytes_per_second: Of one device's share of the network cards, per direction.
        oversubscription: How many times less bandwidth the network's core has than its edge.

    >>> cluster = parse_cluster("64xH100")
    >>> cluster.device.name, cluster.domain_size, cluster.network_bytes_per_second / 1e9
    ('H100-SXM-80GB', 8, 50.0)
    """
    num_devices, name = _split(text)
    machine, contents = instance(name), []
    if machine is not None:
        num_devices, name = num_devices * machine.count, machine.device
        contents = [f"{text.strip()} has {num_devices} x {name}"]
    part = catalogue.device(name)
    _check_overrides(domain_size, domain_bytes_per_second, network_bytes_per_second)
    assumed = [*contents, *part.assumed, *ambiguity(name, part), *_seen_apart(num_devices, part)]
    changes: dict[str, float | int | None] = {
        "domain_size": domain_size,
        "domain_bytes_per_second": domain_bytes_per_second,
        "network_bytes_per_second": network_bytes_per_second,
        "oversubscription": oversubscription,
    }
    assumed += _taken_as_typical(part, num_devices, changes)
    typical = _typical(part, num_devices, assumed)
    if oversubscription is None:
        assumed.append("the network's core carries what its edge does (oversubscription 1)")
    elif oversubscription < 1:
        raise InputError(f"oversubscription is {oversubscription:g}; it must be 1 or more")
    given = {key: value for key, value in changes.items() if value is not None}
    whole = replace(typical, **given, assumed=tuple(assumed))  # type: ignore[arg-type]
    if num_devices > whole.domain_size and num_devices % whole.domain_size:
        last = num_devices % whole.domain_size
        partly = f"{num_devices} devices leave the last node with {last} of {whole.domain_size}"
        whole = replace(whole, assumed=(*whole.assumed, partly))
    return whole


def _split(text: str) -> tuple[int, str]:
    found = re.fullmatch(r"\s*([\d_,]+)\s*[xX×*]\s*(\S.*?)\s*", text)
    if found is None:
        raise InputError(
            f"cluster {text!r}: write a count, an x and a device, as in 64xH100"
            " (ridgeline hardware --list names the devices)"
        )
    digits = re.sub("[_,]", "", found[1])
    count = int(digits) if digits else 0
    if not 1 <= count <= 10_000_000:
        raise InputError(f"cluster {text!r}: the count must be from 1 to 10,000,000")
    return count, found[2]


def ambiguity(name: str, part: Device) -> list[str]:
    """A sentence when the words of `name` fit several devices, of which `part` is the usual one."""
    words = set(re.split(r"[\s_/()-]+", name.casefold()))
    fits = [other.name for other in catalogue.devices() if words <= _words(other.name)]
    others = [other for other in fits if other != part.name]
    if part.name not in fits or not others:
        return []
    return [f"{name} is read as {part.name}; it could also be {', '.join(others)}"]


def _seen_apart(num_devices: int, part: Device) -> list[str]:
    """A sentence on a part that software sees as several devices: none has all of its memory."""
    dies = part.chip.logical_devices
    if dies == 1:
        return []
    each = quantity.binary_memory(part.memory.capacity_bytes / dies)
    seen = f"software sees {dies} of them with {each} each"
    counted = f"{num_devices * dies}x{part.name}-1GCD counts"
    return [f"{part.name} is counted as one device; {seen}, which {counted}"]


@functools.cache
def _words(name: str) -> frozenset[str]:
    return frozenset(name.casefold().split("-"))


def _taken_as_typical(
    part: Device, num_devices: int, given: dict[str, float | int | None]
) -> list[str]:
    """What of the usual node is taken, since it was not given."""
    node, source = node_of(part)
    parts, cures = [], []
    if given["domain_size"] is None:
        fabric = "" if source is not None or node.fabric is None else f" joined by {node.fabric}"
        parts.append(f"{node.domain_size} x {part.name}{fabric}")
        cures.append("--domain-size")
        if fabric and given["domain_bytes_per_second"] is None:
            cures.append("--domain-bandwidth")
    if given["network_bytes_per_second"] is None:
        one_box = f"{num_devices} in one machine, over its host's links"
        cards = f"{node.network_links} x {node.network}"
        parts.append(one_box if _in_one_box(node, num_devices) else cards)
        cures.append("--network")
    if not parts:
        return []
    if source is None:
        known = f"no node with {part.name} is on record: assumed are {', '.join(parts)}"
        return [f"{known}; give {', '.join(cures)} where yours differ"]
    return [f"nodes as in {node.name}: {', '.join(parts)} ({source.title})"]


def _in_one_box(node: Node, num_devices: int) -> bool:
    """Whether so many devices, more than a fabric joins, stand in one machine."""
    return node.domain_size < num_devices <= (node.box_size or 0)


def _typical(part: Device, num_devices: int, assumed: list[str]) -> Cluster:
    node = node_of(part)[0]
    network = catalogue.link(node.network)
    bandwidth, latency = _fabric(part, node, assumed)
    host = _host(part, assumed)
    cards = network.bandwidth_bytes_per_second * node.network_links / node.domain_size
    return Cluster(
        device=part,
        num_devices=num_devices,
        domain_size=node.domain_size,
        domain_bytes_per_second=bandwidth,
        domain_latency_seconds=latency,
        linked_peers=node.linked_peers,
        network_bytes_per_second=host if _in_one_box(node, num_devices) else cards,
        network_latency_seconds=_latency(network, assumed),
        host_bytes_per_second=host,
        disk_read_bytes_per_second=TYPICAL_DISK_BYTES_PER_SECOND,
        disk_write_bytes_per_second=TYPICAL_DISK_BYTES_PER_SECOND,
    )


def _fabric(part: Device, node: Node, assumed: list[str]) -> tuple[float, float]:
    """Bandwidth of one device into its domain, and the latency of one hop in it."""
    if node.fabric is not None:
        joined = catalogue.link(node.fabric)
        return joined.bandwidth_bytes_per_second, _latency(joined, assumed)
    own = [catalogue.link(one.link) for one in part.interconnects]
    fabrics = [one for one in own if one.kind == "fabric"]
    bandwidth = catalogue.peer_bandwidth_bytes_per_second(part)
    if bandwidth is None:  # nothing to join: a domain of one
        host = catalogue.link(FALLBACK_HOST_LINK)
        return host.bandwidth_bytes_per_second, _latency(host, assumed)
    return bandwidth, _latency(fabrics[0], assumed)


def _latency(connection: Link, assumed: list[str]) -> float:
    if connection.latency_seconds is not None:
        return connection.latency_seconds
    known = catalogue.link(_FALLBACK_LATENCY_LINK)
    assert known.latency_seconds is not None
    assumed.append(
        f"the latency of {connection.name} is not published; that of {known.name} is taken"
    )
    return known.latency_seconds


def _host(part: Device, assumed: list[str]) -> float:
    own = [catalogue.link(one.link) for one in part.interconnects]
    rates = [one.bandwidth_bytes_per_second for one in own if one.kind == "host"]
    if rates:
        return max(rates)
    assumed.append(f"{part.name} reaches its host as over {FALLBACK_HOST_LINK}")
    return catalogue.link(FALLBACK_HOST_LINK).bandwidth_bytes_per_second


def _check_overrides(
    domain_size: int | None,
    domain_bytes_per_second: float | None,
    network_bytes_per_second: float | None,
) -> None:
    if domain_size is not None and domain_size < 1:
        raise InputError(f"the domain size is {domain_size}; it must be 1 or more")
    rates = {"domain": domain_bytes_per_second, "network": network_bytes_per_second}
    for what, rate in rates.items():
        if rate is not None and not 0 < rate < 1e16:
            raise InputError(f"the {what} bandwidth is {rate:g} bytes per second; give above 0")
