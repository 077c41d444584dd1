"""`ridgeline roofline` in the terminal: the operators as a table and on a log-log plot.

Both read without colours: a letter names an operator in table and plot, a figure names a device.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.text import Text

from ridgeline import quantity
from ridgeline.records.roofline import DeviceRoofline, ModelRoofline, PlacedOperator
from ridgeline.report.fitted_table import FittedTable
from ridgeline.report.terms import LOOKS

WIDE = 110
LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
PLOT_ROWS = 18
BOUND_STYLES = {"compute": "green", "memory": "yellow"}


def roofline_view(roof: ModelRoofline) -> RenderableType:
    """Title, plot, table, and what each device comes to."""
    title = Text.assemble((roof.model, "bold"), f" · {describe(roof)}\n")
    title.append(
        f"{quantity.scaled(roof.flops, 'FLOP')}, {quantity.memory(roof.moved_bytes)} moved"
        f" ({quantity.digits(roof.flops / roof.moved_bytes)} FLOP/byte over all),"
        f" weights {quantity.memory(roof.weight_bytes)}",
        style="dim",
    )
    return Group(title, Text(), _Plot(roof), Text(), _Operators(roof), Text(), _devices(roof))


def describe(roof: ModelRoofline) -> str:
    """What is computed, in words."""
    passes = {"train": "forward and backward", "prefill": "forward", "decode": "one new token each"}
    what = "image" if roof.seq is None else "sequence"
    what += "" if roof.batch == 1 else "s"
    length = ""
    if roof.seq is not None:
        length = f" of {quantity.count(roof.seq)} tokens"
        if roof.phase == "decode":
            length = f" after {quantity.count(roof.seq)} cached tokens"
    return f"{roof.phase}: {passes[roof.phase]}, {roof.batch} {what}{length}"


def letters(roof: ModelRoofline) -> list[str]:
    """A letter for each operator, in the order of the table; past the alphabet a blank."""
    count = len(roof.devices[0].operators)
    return [LETTERS[index] if index < len(LETTERS) else " " for index in range(count)]


@dataclass(frozen=True, slots=True)
class _Operators:
    """One line per operator; more devices or less width show fewer columns of each."""

    roof: ModelRoofline

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        wide = options.max_width >= WIDE
        alone = len(self.roof.devices) == 1
        table = FittedTable(
            box=None, header_style="dim", pad_edge=False, padding=(0, 2, 0, 0),
            collapse_padding=True, lead=2,
        )  # fmt: skip
        table.add_column("")
        table.add_column("Operator", overflow="ellipsis", no_wrap=True)
        if wide and alone:
            table.add_column("shape", overflow="ellipsis", no_wrap=True)
        for name in ("times", "FLOP/byte"):
            table.add_column(name, justify="right", no_wrap=True)
        for place, device in enumerate(self.roof.devices, start=1):
            head = "" if alone else f"{place} "
            table.add_column(f"{head}bound", no_wrap=True)
            if alone or wide:
                table.add_column(f"{head}attainable", justify="right", no_wrap=True)
            table.add_column(f"{head}time", justify="right", no_wrap=True)
            table.add_column(f"{head}share", justify="right", no_wrap=True)
            assert len(device.operators) == len(self.roof.devices[0].operators)
        for index, letter in enumerate(letters(self.roof)):
            first = self.roof.devices[0].operators[index]
            cells: list[RenderableType] = [Text(letter, style="bold"), Text(first.name)]
            if wide and alone:
                cells.append(Text(first.shape, style="dim"))
            cells += [str(first.count), quantity.digits(first.intensity_flops_per_byte)]
            for device in self.roof.devices:
                cells += _on_device(device.operators[index], attainable=alone or wide)
            table.add_row(*cells)
        yield table


def _on_device(one: PlacedOperator, *, attainable: bool) -> list[RenderableType]:
    cells: list[RenderableType] = [Text(one.bound, style=BOUND_STYLES[one.bound])]
    if attainable:
        rate = quantity.scaled(one.attainable_flops_per_second, "FLOP/s") if one.flops else "–"
        cells.append(rate)
    return [*cells, quantity.seconds(one.seconds * one.count), quantity.percent(one.share)]


def _devices(roof: ModelRoofline) -> FittedTable:
    table = FittedTable(box=None, header_style="dim", pad_edge=False, padding=(0, 2, 0, 0), lead=2)
    for name in ("", "Device", "peak", "bandwidth", "ridge", "least time", "compute-bound"):
        table.add_column(name, justify="left" if name in ("", "Device") else "right", no_wrap=True)
    for place, device in enumerate(roof.devices, start=1):
        table.add_row(
            Text(str(place), style=LOOKS[_color(place)].terminal),
            f"{device.device} {device.dtype}",
            quantity.scaled(device.peak_flops_per_second, "FLOP/s"),
            quantity.scaled(device.bandwidth_bytes_per_second, "B/s"),
            quantity.digits(device.ridge_flops_per_byte),
            quantity.seconds(device.seconds),
            quantity.percent(device.compute_bound_share),
        )
    return table


def _color(place: int) -> int:
    return (place - 1) % (len(LOOKS) - 1)


@dataclass(frozen=True, slots=True)
class _Plot:
    """Roofs as lines of their device's figure, operators as their letters, both axes in decades."""

    roof: ModelRoofline

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        columns = min(max(options.max_width, 40), 120) - 9
        drawing = _Drawing(self.roof, columns)
        for place, device in enumerate(self.roof.devices, start=1):
            drawing.draw_roof(place, device)
        for device in self.roof.devices:
            drawing.draw_operators(device, letters(self.roof))
        yield from drawing.lines()


class _Drawing:
    """Characters on a grid over two logarithmic axes."""

    def __init__(self, roof: ModelRoofline, columns: int) -> None:
        shown = [one for device in roof.devices for one in device.operators if one.flops]
        intensities = [one.intensity_flops_per_byte for one in shown]
        intensities += [device.ridge_flops_per_byte for device in roof.devices]
        rates = [one.attainable_flops_per_second for one in shown]
        rates += [device.peak_flops_per_second for device in roof.devices]
        self.left = math.log10(min(intensities) / 1.5)
        self.right = math.log10(max(intensities) * 2)
        self.bottom = math.log10(min(rates) / 1.5)
        self.top = math.log10(max(rates) * 1.5)
        self.columns = columns
        self.cells: dict[tuple[int, int], tuple[str, str]] = {}

    def column(self, intensity: float) -> int:
        share = (math.log10(intensity) - self.left) / (self.right - self.left)
        return min(self.columns - 1, max(0, round(share * (self.columns - 1))))

    def row(self, rate: float) -> int:
        share = (self.top - math.log10(rate)) / (self.top - self.bottom)
        return round(share * (PLOT_ROWS - 1))

    def draw_roof(self, place: int, device: DeviceRoofline) -> None:
        style = LOOKS[_color(place)].terminal
        for column in range(self.columns):
            intensity = 10 ** (self.left + column / (self.columns - 1) * (self.right - self.left))
            rate = min(device.peak_flops_per_second, intensity * device.bandwidth_bytes_per_second)
            row = self.row(rate)
            if 0 <= row < PLOT_ROWS:
                flat = intensity >= device.ridge_flops_per_byte
                self.cells[row, column] = ("─" if flat else "╱", style)
        end = self.row(device.peak_flops_per_second)
        self.cells[end, self.columns - 1] = (str(place), f"bold {style}")

    def draw_operators(self, device: DeviceRoofline, names: list[str]) -> None:
        """The least expensive first, so that those that matter stay on top."""
        order = sorted(range(len(names)), key=lambda index: device.operators[index].share)
        for index in order:
            one = device.operators[index]
            if not one.flops:
                continue
            row = self.row(one.attainable_flops_per_second)
            column = self.column(one.intensity_flops_per_byte)
            self.cells[row, column] = (names[index], f"bold {BOUND_STYLES[one.bound]}")

    def lines(self) -> list[Text]:
        marks = {self.row(10.0**power): power for power in self._decades(self.bottom, self.top)}
        drawn = [Text("FLOP/s".rjust(8), style="dim")]
        for row in range(PLOT_ROWS):
            label = _short_rate(marks[row]) if row in marks else ""
            line = Text(f"{label:>8}┤" if label else " " * 8 + "│", style="dim", no_wrap=True)
            for column in range(self.columns):
                sign, style = self.cells.get((row, column), (" ", ""))
                line.append(sign, style=style or None)
            drawn.append(line)
        axis, labels = ["─"] * self.columns, [" "] * self.columns
        for power in self._decades(self.left, self.right):
            column = self.column(10.0**power)
            axis[column] = "┬"
            label = f"{10.0**power:g}"
            for offset, sign in enumerate(label):
                if column + offset < self.columns:
                    labels[column + offset] = sign
        drawn.append(Text(" " * 8 + "└" + "".join(axis), style="dim", no_wrap=True))
        drawn.append(Text(" " * 9 + "".join(labels), style="dim", no_wrap=True))
        drawn.append(Text("FLOP/byte".rjust(self.columns + 9), style="dim", no_wrap=True))
        return drawn

    @staticmethod
    def _decades(low: float, high: float) -> range:
        return range(math.ceil(low), math.floor(high) + 1)


def _short_rate(power: int) -> str:
    prefixes = {15: "P", 12: "T", 9: "G", 6: "M", 3: "k"}
    base = max((size for size in prefixes if size <= power), default=0)
    return f"{10 ** (power - base)} {prefixes.get(base, '')}".rstrip()
