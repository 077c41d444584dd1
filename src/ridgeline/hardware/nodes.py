"""What usually surrounds a device: its fast domain and its network (`nodes.toml`)."""

from __future__ import annotations

import functools
from pathlib import Path

from ridgeline.errors import InputError
from ridgeline.hardware.catalogue import device, link
from ridgeline.hardware.facts import Fact, Source
from ridgeline.records.input_file import read_toml

FILE = Path(__file__).with_name("nodes.toml")


class Node(Fact, frozen=True, kw_only=True):
    """A domain of devices as it is usually built, with its network cards."""

    name: str
    devices: list[str]
    """Canonical names of the devices that it is built of."""
    domain_size: int
    host_size: int | None = None
    """Devices of one host, where a domain spans several; None: the whole domain is one host."""
    fabric: str | None = None
    """The link that joins the domain; None: the device's own fabric links."""
    network: str
    """Name of a network link in `links.toml`."""
    network_links: int
    """Network cards of the whole domain."""
    notes: str = ""
    source: str


class NodeFile(Fact, frozen=True, kw_only=True):
    """`nodes.toml`."""

    sources: dict[str, Source]
    node: list[Node]


def typical_node(name: str) -> tuple[Node, Source]:
    """The usual node of the device called `name` (canonical), and where that is written.

    >>> typical_node("H100-SXM-80GB")[0].name
    'DGX H100'
    """
    by_device, sources = _read(FILE)
    if name not in by_device:
        raise InputError(
            f"{name}: no typical node is known; give --domain-size, --domain-bandwidth and"
            " --network"
        )
    node = by_device[name]
    return node, sources[node.source]


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
