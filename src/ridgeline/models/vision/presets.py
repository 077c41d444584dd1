"""Well-known networks for images by name, without torch.

`presets.csv.gz` holds what `bench/vision_presets.py` counted of the models of timm, torchvision and
transformers: CSV in gzip members, first an index, then one member a family, so that loading a
network unpacks its family alone.
"""

from __future__ import annotations

import csv
import difflib
import functools
import zlib
from dataclasses import dataclass
from pathlib import Path

from ridgeline.errors import InputError
from ridgeline.models.names import fold
from ridgeline.models.vision.network import VisionNetwork
from ridgeline.models.vision.rows import read_row
from ridgeline.models.vision.sizes import resize

FILE = Path(__file__).with_name("presets.csv.gz")
ALIASES = Path(__file__).with_name("aliases.csv")
"""What published tables call a preset otherwise; a resolution or a precision in the name is not
part of it."""
SMALLEST = 32
"""Height and width below which last stages see less than a pixel."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """Where a network stands in the file, at which image sizes."""

    name: str
    family: str
    size: tuple[int, int]
    """Height and width of the image for which it is counted."""
    larger: tuple[int, int] | None
    """The second size; None where there is one alone."""
    parameters: int
    larger_parameters: int
    offset: int
    """Bytes from the end of the index to the family's member."""
    first: int
    """Line of the network's first operator in the member."""
    lines: int


def load_network(name: str, image_size: int | tuple[int, int] | None = None) -> VisionNetwork:
    """The network called `name`, for images of `image_size` (one number: square).

    Default: the size that its authors use. Case, blanks, `_` and `-` do not matter, nor do a
    prefix (`timm:`) and a pretrained tag (`.a1_in1k`). At other sizes operators are interpolated
    as `sizes.py` says.

    >>> network = load_network("ResNet-50")
    >>> network.image_size, network.parameters, round(network.macs / 1e9, 2)
    ((224, 224), 25557032, 4.09)
    >>> load_network("resnet50", 448).macs > 3.9 * network.macs
    True
    """
    entries = _entries(name)
    size = (image_size, image_size) if isinstance(image_size, int) else image_size
    exact = [one for one in entries if size in (None, one.size)]
    if exact:
        return stored_networks(exact[0])[0]
    assert size is not None
    if min(size) < SMALLEST:
        raise InputError(
            f"{name}: an image of {size[0]}x{size[1]}; it must be {SMALLEST} or more each way"
        )
    growing = [one for one in entries if one.larger]
    if not growing:
        sizes = " or ".join(f"{one.size[0]}x{one.size[1]}" for one in entries)
        raise InputError(
            f"{name}: takes images of {sizes} alone, not {size[0]}x{size[1]}; leave the size out"
        )
    small, large = stored_networks(growing[0])
    return resize(small, large, size)


def find_name(name: str) -> str | None:
    """The preset that `name` means; None when there is none."""
    for spelling in _spellings(name):
        if spelling in names():
            return names()[spelling]
    return None


def network_names() -> list[str]:
    """Names of all presets, as their libraries write them."""
    return list(network_index())


def nearest_names(name: str, *, cutoff: float = 0.5) -> list[str]:
    """At most four presets whose names look like `name`."""
    near = difflib.get_close_matches(_spellings(name)[0], names(), n=4, cutoff=cutoff)
    return [names()[one] for one in near]


def _entries(name: str) -> list[Entry]:
    known = find_name(name)
    if known is None:
        near = nearest_names(name)
        hint = f"; did you mean {', '.join(near)}?" if near else ""
        raise InputError(f"unknown vision model {name!r}{hint}")
    return network_index()[known]


def _spellings(name: str) -> list[str]:
    own = name.rpartition(":")[2].rpartition("/")[2]
    spellings = [fold(own), fold(own.partition(".")[0])]
    # timm writes a width of one as 100: `mobilenet-v2` is `mobilenetv2_100`.
    return spellings + [f"{one}100" for one in spellings]


@functools.cache
def names() -> dict[str, str]:
    """Folded spelling → preset."""
    with ALIASES.open() as file:
        known = {fold(row["alias"]): row["preset"] for row in csv.DictReader(file)}
    return known | {fold(name): name for name in network_index()}


@functools.cache
def network_index() -> dict[str, list[Entry]]:
    """Preset → its entries, the default size first."""
    text, _ = _unpack(_file(), 0)
    rows = csv.reader(line for line in text.splitlines() if not line.startswith("#"))
    found: dict[str, list[Entry]] = {}
    for name, family, size, larger, parameters, more, offset, first, lines in rows:
        entry = Entry(
            name=name,
            family=family,
            size=_size(size),
            larger=_size(larger) if larger else None,
            parameters=int(parameters),
            larger_parameters=int(more or parameters),
            offset=int(offset),
            first=int(first),
            lines=int(lines),
        )
        found.setdefault(name, []).append(entry)
    return found


@functools.lru_cache(maxsize=32)
def stored_networks(entry: Entry) -> tuple[VisionNetwork, VisionNetwork]:
    """The network at its first and its second size."""
    _, start = _unpack(_file(), 0)
    lines = _member(start + entry.offset)[entry.first : entry.first + entry.lines]
    larger = entry.larger or entry.size
    pairs = [read_row(cells, larger[0] / entry.size[0]) for cells in csv.reader(lines)]
    small, large = zip(*pairs, strict=True)
    return (
        VisionNetwork(
            name=entry.name,
            image_size=entry.size,
            operators=small,
            parameters=entry.parameters,
        ),
        VisionNetwork(
            name=entry.name,
            image_size=larger,
            operators=large,
            parameters=entry.larger_parameters,
        ),
    )


def _size(text: str) -> tuple[int, int]:
    height, _, width = text.partition("x")
    return int(height), int(width)


@functools.cache
def _file() -> bytes:
    return FILE.read_bytes()


@functools.lru_cache(maxsize=8)
def _member(offset: int) -> list[str]:
    return _unpack(_file(), offset)[0].splitlines()


def _unpack(data: bytes, offset: int) -> tuple[str, int]:
    """The text of the gzip member at `offset`, and where the next one starts."""
    unzip = zlib.decompressobj(wbits=31)
    text = unzip.decompress(memoryview(data)[offset:])
    return text.decode(), len(data) - len(unzip.unused_data)
