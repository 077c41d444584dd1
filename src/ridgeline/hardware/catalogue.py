"""Look up devices, links and prices by the names that people and drivers use.

The files are read once, on the first look-up, never at import. A name that is not known is an
error that lists the nearest ones; nothing is guessed.
"""

from __future__ import annotations

import difflib
import functools
import re
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec

from ridgeline.errors import InputError
from ridgeline.hardware.facts import (
    Device,
    DeviceFile,
    Link,
    LinkFile,
    Price,
    PriceFile,
    Source,
)
from ridgeline.hardware.instances import instance
from ridgeline.hardware.names import read_name
from ridgeline.records.input_file import read_text, read_toml

FACTS = Path(__file__).parent
_REPORTED = re.compile(r"^cuda_names\s*=\s*\[(.*?)\]", re.MULTILINE | re.DOTALL)
_QUOTED = re.compile(r'"([^"]*)"')

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Catalogue:
    """Everything that one folder of facts says."""

    devices: dict[str, Device]
    """By canonical name, in the order of the files."""
    device_names: dict[str, str]
    """Folded name, alias or driver's name → canonical name."""
    links: dict[str, Link]
    link_names: dict[str, str]
    prices: list[Price]


def devices() -> list[Device]:
    """Every device that we have facts about."""
    return list(catalogue().devices.values())


def device(name: str) -> Device:
    """The device called `name`.

    A canonical name, an alias, or what the driver reports; one of these with memory, power or a
    part of the package behind it (`names.py`), or with a second name in brackets; or a machine,
    of which one device is meant (`instances.py`).

    >>> device("NVIDIA H100 80GB HBM3").name
    'H100-SXM-80GB'
    >>> device("RTX4090-24GB").name
    'RTX-4090'
    >>> device("p5.48xlarge").name
    'H100-SXM-80GB'
    """
    found = _known(name) or read_name(name, _known) or _with_second_name(name)
    if found is not None:
        return found
    book = catalogue()
    machine = instance(name)
    if machine is not None and machine.device in book.devices:
        return msgspec.structs.replace(book.devices[machine.device], assumed=[machine.said(name)])
    return book.devices[_find(name, book.device_names, "device")]


def _known(name: str) -> Device | None:
    """The device of a plain name; None where there is none."""
    book = catalogue()
    canonical = book.device_names.get(_fold(name))
    return None if canonical is None else book.devices[canonical]


def _with_second_name(name: str) -> Device | None:
    """The device of a name with another one of its names in brackets: TPU v6e (Trillium)."""
    parts = re.fullmatch(r"([^()]+)\(([^()]+)\)\s*", name)
    first = None if parts is None else _known(parts[1])
    return first if first is not None and parts is not None and first == _known(parts[2]) else None


@functools.cache
def match_reported_name(name: str) -> Device | None:
    """The device that a driver reports as `name`; None when we have no facts about it.

    Reads the one file that names it: all of them take longer than a trace of some MB.
    """
    folded = _fold(name)
    for path in _device_files(FACTS):
        if folded in _reported_in(path):
            parts = _cited_parts(path, read_toml(path, DeviceFile))
            return next(one for one in parts if folded in map(_fold, one.cuda_names))
    return None


@functools.cache
def _reported_in(path: Path) -> frozenset[str]:
    """The driver's names of a file, folded, without a look at anything else in it."""
    listed = _REPORTED.findall(read_text(path))
    return frozenset(_fold(name) for names in listed for name in _QUOTED.findall(names))


def _device_files(folder: Path) -> list[Path]:
    """The files of the families of devices, in the order of their names."""
    return sorted((folder / "devices").glob("*.toml"))


def _cited_parts(path: Path, family: DeviceFile) -> list[Device]:
    """The devices of one file, each with its sources."""
    return [
        msgspec.structs.replace(
            part, sources=_cite(path, part.name, _source_keys(part), family.sources)
        )
        for part in family.device
    ]


def links() -> list[Link]:
    """Every link that we have facts about."""
    return list(catalogue().links.values())


def link(name: str) -> Link:
    """The link called `name`, e.g. `nvlink-4` or `infiniband-ndr`."""
    book = catalogue()
    return book.links[_find(name, book.link_names, "link")]


def peer_bandwidth_bytes_per_second(part: Device) -> float | None:
    """Bandwidth from one device to its peers, per direction, over all links of its fabric.

    None for a device that reaches its peers only through the host.

    >>> peer_bandwidth_bytes_per_second(device("h100")) / 1e9
    450.0
    """
    fabrics = [(link(one.link), one.count) for one in part.interconnects]
    rates = [
        known.bandwidth_bytes_per_second * count
        for known, count in fabrics
        if known.kind == "fabric"
    ]
    return max(rates, default=None)


def prices(name: str) -> list[Price]:
    """The prices on record for a device, cheapest first; empty when there are none."""
    part = device(name)
    canonical = part.variant_of or part.name
    found = [price for price in catalogue().prices if price.device == canonical]
    return sorted(found, key=lambda price: price.usd_per_device_hour)


def typical_usd_per_device_hour(name: str) -> float | None:
    """Median of the prices on record; None when there are none."""
    found = [price.usd_per_device_hour for price in prices(name)]
    return statistics.median(found) if found else None


@functools.cache
def catalogue(folder: Path = FACTS) -> Catalogue:
    """Read and cross-check one folder of facts."""
    link_file = read_toml(folder / "links.toml", LinkFile)
    price_file = read_toml(folder / "prices.toml", PriceFile)
    parts: dict[str, Device] = {}
    names: dict[str, str] = {}
    connections: dict[str, Link] = {}
    link_names: dict[str, str] = {}
    families = {path: read_toml(path, DeviceFile) for path in _device_files(folder)}
    with_links: dict[Path, LinkFile | DeviceFile] = {folder / "links.toml": link_file, **families}
    for path, named in with_links.items():
        for one in named.link:
            keys = [key for key in (one.source, one.latency_source) if key is not None]
            cited = _cite(path, one.name, keys, named.sources)
            connections[one.name] = msgspec.structs.replace(one, sources=cited)
            for alias in (one.name, *one.aliases):
                _claim(link_names, alias, one.name, path)
    for path, family in families.items():
        for part in _cited_parts(path, family):
            _check_node(path, part, connections)
            for connection in part.interconnects:
                if connection.link not in connections:
                    raise InputError(f"{path}: {part.name}: no link {connection.link!r}")
            parts[part.name] = part
            for alias in (part.name, *part.aliases, *part.cuda_names):
                _claim(names, alias, part.name, path)
    tags = []
    for price in price_file.price:
        if price.device not in parts:
            raise InputError(f"{folder / 'prices.toml'}: no device {price.device!r}")
        cited = _cite(folder / "prices.toml", price.device, [price.source], price_file.sources)
        tags.append(msgspec.structs.replace(price, sources=cited))
    return Catalogue(
        devices=parts,
        device_names=names,
        links=connections,
        link_names=link_names,
        prices=tags,
    )


def _check_node(path: Path, part: Device, known: dict[str, Link]) -> None:
    """A node in a device's own table names links that exist."""
    if part.node is None:
        return
    for name in (part.node.network, part.node.fabric):
        if name is not None and name not in known:
            raise InputError(f"{path}: {part.name}: its node has no link {name!r}")


def _source_keys(part: Device) -> list[str]:
    keys = [part.peak_flops_per_second.source, part.memory.source, part.chip.source]
    keys += [connection.source for connection in part.interconnects]
    if part.memory.reported_source is not None:
        keys.append(part.memory.reported_source)
    if part.power is not None:
        keys.append(part.power.source)
    if part.node is not None:
        keys.append(part.node.source)
    keys += [mode.source for mode in part.modes]
    return keys


def _cite(path: Path, owner: str, keys: list[str], known: dict[str, Source]) -> dict[str, Source]:
    """The sources behind `keys`, each of which must be in the file's `[sources]`."""
    for key in keys:
        if key not in known:
            raise InputError(f"{path}: {owner}: source {key!r} is not in [sources]")
    return {key: known[key] for key in sorted(set(keys))}


def _claim(names: dict[str, str], alias: str, owner: str, path: Path) -> None:
    """Give a name to its owner; two owners of one name are an error."""
    holder = names.setdefault(_fold(alias), owner)
    if holder != owner:
        raise InputError(f"{path}: {alias!r} names both {holder} and {owner}")


def _find(name: str, names: dict[str, str], what: str) -> str:
    found = names.get(_fold(name))
    if found is not None:
        return found
    near = difflib.get_close_matches(_fold(name), names, n=12, cutoff=0.4)
    nearest = list(dict.fromkeys(names[one] for one in near))[:5]
    hint = f"did you mean {', '.join(nearest)}?" if nearest else "see: ridgeline hardware --list"
    raise InputError(f"unknown {what} {name!r}; {hint}")


def _fold(name: str) -> str:
    """One spelling for all: drivers and tables put the maker's name in front, or do not."""
    joined = re.sub(r"[\s_/()-]+", "-", name.casefold()).strip("-")
    return re.sub(r"^(nvidia|amd|intel|habana|google|aws)-", "", joined)
