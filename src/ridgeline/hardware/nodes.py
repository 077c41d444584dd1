"""What usually surrounds a device: its fast domain and its network.

Nodes that several devices share stand in `nodes.toml`; one that only a single device has may stand
in the device's own table.
"""

from __future__ import annotations

import functools
from pathlib import Path

import msgspec

from ridgeline.errors import InputError
from ridgeline.hardware.catalogue import device, devices, link
from ridgeline.hardware.facts import Device, Fact, Node, Source
from ridgeline.records.input_file import read_toml

FILE = Path(__file__).with_name("nodes.toml")
FALLBACK_HOST_LINK = "pcie-4-x16"
"""The host link of a device whose way to its host is not on record."""


class NodeFile(Fact, frozen=True, kw_only=True):
    """The content of `nodes.toml`."""

    sources: dict[str, Source]
    node: list[Node]


def node_of(part: Device) -> tuple[Node, Source | None]:
    """The usual node of a device, and where that is written; None: it is assumed.

    A new device is one table of `devices/`: what surrounds it may not be known yet.

    >>> node_of(device("h100"))[0].name
    'DGX H100'
    """
    if part.node is not None:
        return part.node, part.sources[part.node.source]
    by_device, sources = _read(FILE)
    name = part.variant_of or part.name
    if name not in by_device:
        return _assumed_node(part), None
    node = by_device[name]
    return node, sources[node.source]


def nodes() -> list[Node]:
    """Every node on record: those that devices share, then those in a device's own table."""
    shared = {id(node): node for node in _read(FILE)[0].values()}
    own = [
        msgspec.structs.replace(part.node, devices=[part.name])
        for part in devices()
        if part.node is not None
    ]
    return [*shared.values(), *own]


def _assumed_node(part: Device) -> Node:
    """Eight to a host, as in most nodes that are on record, with the cards that those have."""
    joined = [link(one.link) for one in part.interconnects]
    own_fabric = any(one.kind == "fabric" for one in joined)
    hosts = sorted(
        (one for one in joined if one.kind == "host"),
        key=lambda one: one.bandwidth_bytes_per_second,
    )
    fabric = None if own_fabric else (hosts[-1].name if hosts else FALLBACK_HOST_LINK)
    return Node(
        name=f"an assumed node of {part.name}",
        devices=[part.name],
        domain_size=8,
        fabric=fabric,
        network="infiniband-ndr" if own_fabric else "ethernet-100",
        network_links=8 if own_fabric else 1,
        source="",
    )


@functools.cache
def _read(path: Path) -> tuple[dict[str, Node], dict[str, Source]]:
    """Device → node, and the sources; every name that the file uses must be known."""
    content = read_toml(path, NodeFile)
    by_device: dict[str, Node] = {}
    for node in content.node:
        link(node.network)
        if node.fabric is not None:
            link(node.fabric)
        if node.source not in content.sources:
            raise InputError(f"{path}: {node.name}: source {node.source!r} is not in [sources]")
        for name in node.devices:
            holder = by_device.setdefault(device(name).name, node)
            if holder is not node:
                raise InputError(f"{path}: {name} stands in {holder.name} and in {node.name}")
    return by_device, content.sources
