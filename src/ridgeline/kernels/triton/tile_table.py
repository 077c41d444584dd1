"""Tables of tiles, best first: the first that suits, and that the device has room for, is taken.

A table is a CSV file with a row per tile. `kernel`, `element_bytes`, `shared_bytes` (what a device
must have for one block) and `major` (the compute capability, its first number, on which the row was
timed; empty: any) stand in every table; the other columns are numbers that only its kernels know.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import torch

from ridgeline.kernels.triton import major_capability, shared_bytes

_SHARED_COLUMNS = ("kernel", "element_bytes", "shared_bytes", "major")


class TileChoice(NamedTuple):
    """A row of a table."""

    kernel: str
    element_bytes: int
    shared_bytes: int
    major: int | None
    numbers: Mapping[str, int]
    """The columns that its kernels know."""


@lru_cache
def tile_choices(table: Path) -> tuple[TileChoice, ...]:
    """The rows of a table in its order."""
    with table.open() as file:
        return tuple(
            TileChoice(
                row["kernel"],
                int(row["element_bytes"]),
                int(row["shared_bytes"]),
                int(row["major"]) if row["major"] else None,
                {name: int(row[name]) for name in row if name not in _SHARED_COLUMNS},
            )
            for row in csv.DictReader(file)
        )


def first_tile_that_fits(
    table: Path,
    kernel: str,
    element_bytes: int,
    device: torch.device,
    suits: Callable[[Mapping[str, int]], bool] = lambda _: True,
) -> Mapping[str, int] | None:
    """The numbers of the first row that the device has room for; None where there is none.

    Args:
        table: The CSV file.
        kernel: As its column names it.
        element_bytes: Of the numbers that are multiplied.
        device: Where the kernel runs.
        suits: What else must hold of a row's numbers.
    """
    room, major = shared_bytes(device), major_capability(device)
    for choice in tile_choices(table):
        if (choice.kernel, choice.element_bytes) != (kernel, element_bytes):
            continue
        if choice.major in (None, major) and choice.shared_bytes <= room and suits(choice.numbers):
            return choice.numbers
    return None
