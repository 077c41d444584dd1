"""Tables of Nsight Compute as counters of kernels: `ncu --csv`, in each of its three forms.

    --page details        a row per kernel and metric, names in words ("Achieved Occupancy")
    --page raw            a row per kernel, metrics as columns (`sm__warps_active.avg…`), then units
    --print-summary       a row per kernel's name and metric, with minimum, maximum and average

Lines before the table (`==PROF== …`, what the program printed) are passed over. Values come in
units that ncu chose for reading (Gbyte/second, usecond) or in base units; here all are in base
units, so a metric has one unit: its name and, where words are used twice, what it is measured in.
Numbers are written as the user's locale has it, 1,234.5 or 1.234,5.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

from ridgeline.errors import InputError
from ridgeline.records.input_file import csv_rows, read_text

CURE = "write it with ncu --csv --set full --page raw (or --page details) --log-file FILE"
_NAME = "Kernel Name"
_RULE = "Rule Name"
_PREFIXES = {"n": 1e-9, "u": 1e-6, "m": 1e-3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_UNIT = re.compile(r"([numKMGT])?(second|s|byte/second|byte/s|byte|B/s|B)")
_NUMBER = re.compile(r"-?[\d,]*\.?\d+(?:[eE][+-]?\d+)?")
_DECIMAL_COMMA = re.compile(r"-?(?:\d+,(?:\d{1,2}|\d{4,})|0,\d+|\d{1,3}(?:\.\d{3})+,\d+)")
"""Numbers whose comma cannot part thousands."""
_DECIMAL_POINT = re.compile(r"-?(?:\d+\.(?:\d{1,2}|\d{4,})|0\.\d+|\d{1,3}(?:,\d{3})+\.\d+)")
_VALUES = ("Metric Value", "Minimum", "Maximum", "Average")


@dataclass(frozen=True, slots=True)
class CountedKernel:
    """One launch, or all launches of one name in a summary."""

    name: str
    launches: int
    metrics: Mapping[tuple[str, str], float]
    """(Metric, its base unit) → value; the mean over the launches of a summary."""


def read_ncu_table(path: Path) -> list[CountedKernel]:
    """The kernels of a table, in its order.

    Raises:
        InputError: It is no table of Nsight Compute, or a row has another length than its head.
    """
    text = read_text(path, cure=CURE)
    begin = next((place for place, line in _lines(text) if f'"{_NAME}"' in line), None)
    if begin is None:
        raise InputError(f"{path}: no table of Nsight Compute; {CURE}")
    skipped = text.count("\n", 0, begin)
    rows = csv_rows(text[begin:], where=str(path), cure=CURE)
    head = next(rows)[1]
    # A row of a metric ends before the columns of rules, which only rows of rules fill.
    least = head.index(_RULE) if _RULE in head else len(head)
    table = []
    for line, cells in rows:
        if not least <= len(cells) <= len(head):
            if cells[0].startswith("=="):  # ncu's own words, after the table
                continue
            where = f"{path}, line {line + skipped}"
            raise InputError(f"{where}: {len(cells)} cells under {len(head)} columns; {CURE}")
        table.append(dict(zip_longest(head, cells, fillvalue="")))
    table = _with_points(table, path)
    if "Metric Name" not in head:
        found = _wide(table)
    elif "Metric Value" in head:
        found = _long(table)
    elif "Average" in head:
        found = _summary(table)
    else:
        raise InputError(f"{path}: its metrics have neither Metric Value nor Average; {CURE}")
    if not found:
        raise InputError(f"{path}: no kernel in it; {CURE}")
    return found


def _with_points(table: list[dict[str, str]], path: Path) -> list[dict[str, str]]:
    """The rows with decimal points, where numbers show that commas are decimal here."""
    head = list(table[0]) if table else []
    held = [name for name in head if name in _VALUES] if "Metric Name" in head else head
    values = [row[name].strip() for row in table for name in held if name != _NAME]
    comma = next((one for one in values if _DECIMAL_COMMA.fullmatch(one)), None)
    if comma is None:
        return table
    point = next((one for one in values if _DECIMAL_POINT.fullmatch(one)), None)
    if point is not None:
        raise InputError(f"{path}: {comma} has a decimal comma and {point} a point; {CURE}")
    swapped = str.maketrans(",.", ".,")
    return [
        row | {name: row[name].translate(swapped) for name in held if name != _NAME}
        for row in table
    ]


def _lines(text: str) -> Iterator[tuple[int, str]]:
    place = 0
    for line in text.splitlines(keepends=True):
        yield place, line
        place += len(line)


def _wide(table: list[dict[str, str]]) -> list[CountedKernel]:
    """The raw page; the row without a kernel's name has the units."""
    units: dict[str, str] = {}
    found = []
    for row in table:
        if not row[_NAME]:
            units = row
            continue
        cells = ((name, units.get(name, ""), value) for name, value in row.items())
        found.append(CountedKernel(row[_NAME], 1, dict(_values(cells))))
    return found


def _long(table: list[dict[str, str]]) -> list[CountedKernel]:
    """The details page; rows of rules have no metric."""
    cells: dict[tuple[str, ...], list[tuple[str, str, str]]] = {}
    for row in table:
        launch = tuple(row.get(key, "") for key in ("Process ID", "ID", _NAME))
        own = (row["Metric Name"], row.get("Metric Unit", ""), row["Metric Value"])
        cells.setdefault(launch, []).append(own)
    return [CountedKernel(key[-1], 1, dict(_values(iter(own)))) for key, own in cells.items()]


def _summary(table: list[dict[str, str]]) -> list[CountedKernel]:
    cells: dict[tuple[str, ...], list[tuple[str, str, str]]] = {}
    launches: dict[tuple[str, ...], int] = {}
    for row in table:
        kernel = tuple(row.get(key, "") for key in ("Process ID", _NAME))
        own = (row["Metric Name"], row.get("Metric Unit", ""), row["Average"])
        cells.setdefault(kernel, []).append(own)
        count = row.get("Invocations", "")
        launches[kernel] = int(count) if count.isdigit() else 1
    return [
        CountedKernel(key[-1], max(1, launches[key]), dict(_values(iter(own))))
        for key, own in cells.items()
    ]


def _values(
    cells: Iterator[tuple[str, str, str]],
) -> Iterator[tuple[tuple[str, str], float]]:
    """Numbers in base units; a counter that the device lacks (`n/a`) is left out."""
    for name, unit, text in cells:
        if _NUMBER.fullmatch(text.strip()) is None:
            continue
        value = float(text.strip().replace(",", ""))
        found = _UNIT.fullmatch(unit)
        if found is None:
            yield (name, unit), value
            continue
        base = {"s": "second", "B": "byte", "B/s": "byte/second", "byte/s": "byte/second"}
        factor = _PREFIXES.get(found[1] or "", 1.0)
        yield (name, base.get(found[2], found[2])), value * factor
