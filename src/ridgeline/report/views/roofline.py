"""What `ridgeline roofline` shows: the operators of a model under the roofs of devices.

In a terminal a letter names an operator in table and plot, a figure names a device, so that both
read without colours.
"""

from __future__ import annotations

import math

from ridgeline import quantity
from ridgeline.records.roofline import AttainedStep, DeviceRoofline, ModelRoofline
from ridgeline.report import document as doc
from ridgeline.report.plots import LOOKS
from ridgeline.report.views.roofline_figures import look_of, roofline_figure, share_figure

NOTE = (
    "Each mark is an operator at its arithmetic intensity and the most that the device can do"
    " there; larger marks take more of the time. Left of the ridge memory decides (squares), right"
    " of it arithmetic (circles)."
)
MEASURED_NOTE = (
    " Diamonds are the operators of a measured step at the rate that they attained; how far they"
    " stand below a roof is what is left to gain."
)
MOST_MEASURED = 12
LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
PLOT_ROWS = 18
_BOUND = {"compute": "green", "memory": "yellow"}


def roofline_document(roof: ModelRoofline) -> doc.ReportDocument:
    """The plot, the operators, and what each device comes to."""
    facts: list[tuple[str, doc.Words]] = [
        ("FLOPs", quantity.scaled(roof.flops, "FLOP")),
        ("bytes moved", quantity.memory(roof.moved_bytes)),
        ("FLOP/byte over all", quantity.digits(roof.flops / roof.moved_bytes)),
        ("weights", quantity.memory(roof.weight_bytes)),
    ]
    facts += [
        (f"least time, {device.device}", quantity.seconds(device.seconds))
        for device in roof.devices
    ]
    shares = doc.figure("shares", share_figure(roof), 110 + 40 * len(roof.devices))
    page: list[doc.Block] = [
        doc.Chapter("Roofline", doc.figure("roofline", roofline_figure(roof), 480), note(roof)),
        doc.Chapter("Where the least time goes", shares),
        *measured_section(roof),
        *(_device_section(device) for device in roof.devices),
    ]
    terminal: list[doc.Block] = [
        doc.Drawing(lambda columns: drawn_lines(roof, columns)),
        _operators(roof),
        device_table(roof),
        *measured_section(roof),
    ]
    shown: list[doc.Block] = [doc.Lead(roof.model, describe(roof), "Roofline"), doc.Values(facts)]
    shown += [doc.Only("page", page), doc.Only("terminal", terminal)]
    if assumed := [f"{one.device}: {line}" for one in roof.devices for line in one.assumed]:
        shown.append(doc.Chapter("Assumed, not measured or given", [doc.Lines(assumed)]))
    return doc.ReportDocument(f"{roof.model} roofline", shown)


def note(roof: ModelRoofline) -> str:
    """How the plot is to be read."""
    return NOTE if roof.measured is None else NOTE + MEASURED_NOTE


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


# -- tables ----------------------------------------------------------------------------------------


def _device_section(device: DeviceRoofline) -> doc.Chapter:
    """Every operator on one device, in the order of the pass."""
    columns = (
        doc.words("operator"),
        doc.words("bound"),
        doc.Column("count", "times"),
        doc.Column("flops", "FLOPs"),
        doc.Column("bytes", "moved"),
        doc.Column("flops_per_byte", "FLOP/byte"),
        doc.Column("flops_per_second", "attainable"),
        doc.Column("seconds", "time"),
        doc.Column("share"),
    )
    rows: list[tuple[doc.Cell, ...]] = [
        (
            (doc.Phrase(one.name, "strong"), doc.Phrase(one.shape, "dim")),
            one.bound,
            one.count,
            one.flops * one.count,
            one.moved_bytes * one.count,
            one.intensity_flops_per_byte,
            one.attainable_flops_per_second if one.flops else None,
            one.seconds * one.count,
            one.share,
        )
        for one in device.operators
    ]
    ridge = quantity.digits(device.ridge_flops_per_byte)
    note = f"Ridge at {ridge} FLOP/byte. Times and bytes are of all occurrences."
    return doc.Chapter(f"{device.device}, {device.dtype}", [doc.DataTable(columns, rows)], note)


def _operators(roof: ModelRoofline) -> doc.DataTable:
    """One line per operator, with a few columns for each device."""
    alone = len(roof.devices) == 1
    columns = [
        doc.words("letter", ""),
        doc.Column("operator", "Operator", "name"),
        doc.Column("shape", "shape", "name", wide=True),
        doc.Column("times"),
        doc.Column("flops_per_byte", "FLOP/byte"),
    ]
    for place in range(1, len(roof.devices) + 1):
        head = "" if alone else f"{place} "
        columns += [
            doc.words("bound", f"{head}bound"),
            doc.Column("flops_per_second", f"{head}attainable", wide=not alone),
            doc.Column("seconds", f"{head}time"),
            doc.Column("share", f"{head}share"),
        ]
    rows = []
    for index, letter in enumerate(letters(roof)):
        first = roof.devices[0].operators[index]
        shape = first.shape if alone else None
        cells: list[doc.Cell] = [doc.Phrase(letter, "strong"), first.name, shape, first.count,
                             first.intensity_flops_per_byte]  # fmt: skip
        for device in roof.devices:
            one = device.operators[index]
            rate = one.attainable_flops_per_second if one.flops else "–"
            cells += [one.bound, rate, one.seconds * one.count, one.share]
        rows.append(cells)
    return doc.DataTable(columns, rows, lead=2)


def device_table(roof: ModelRoofline) -> doc.DataTable:
    """What each device comes to."""
    columns = (
        doc.words("place", ""),
        doc.words("device", "Device"),
        doc.Column("peak_flops_per_second", "peak"),
        doc.Column("bandwidth_bytes_per_second", "bandwidth"),
        doc.Column("ridge_flops_per_byte", "ridge"),
        doc.Column("seconds", "least time"),
        doc.Column("compute_bound_share", "compute-bound"),
    )
    rows = [
        (str(place), f"{device.device} {device.dtype}",
         *(getattr(device, column.field) for column in columns[2:]))
        for place, device in enumerate(roof.devices, start=1)
    ]  # fmt: skip
    return doc.DataTable(columns, rows, lead=2)


def measured_section(roof: ModelRoofline) -> list[doc.Block]:
    """The longest operators of the measured step, beside what its machine allows."""
    step = roof.measured
    if step is None:
        return []
    columns = (
        doc.name("operator"),
        doc.Column("shapes", kind="name", wide=True),
        doc.words("phase"),
        doc.Column("seconds", "time"),
        doc.Column("share"),
        doc.Column("flops_per_byte", "FLOP/byte"),
        doc.Column("flops_per_second", "attained"),
        doc.Column("limit_share", "of its limit"),
        doc.words("bound"),
    )
    rows = [
        (one.name, one.shapes, one.phase, one.seconds, one.share, one.intensity_flops_per_byte,
         one.attained_flops_per_second, one.limit_share or None, one.bound)
        for one in step.operators[:MOST_MEASURED]
    ]  # fmt: skip
    return [doc.Chapter("Measured", [doc.DataTable(columns, rows)], measured_sentence(step))]


def measured_sentence(step: AttainedStep) -> str:
    """What the measured step comes to, and which operator has the most to gain."""
    most = max(step.operators, key=lambda one: one.seconds * (1.0 - min(one.limit_share, 1.0)))
    return (
        f"Measured on {step.device} ({step.file}): a step of {quantity.seconds(step.step_seconds)}"
        f" is at {quantity.percent(step.limit_fraction)} of what that machine allows; most is left"
        f" in {most.name} {most.shapes}, {quantity.seconds(most.seconds)} at"
        f" {quantity.percent(most.limit_share)} of its limit."
    )


# -- the plot in a terminal ------------------------------------------------------------------------

Pieces = list[tuple[str, str]]
"""A line of the picture: pieces of text, each with its style."""


def drawn_lines(roof: ModelRoofline, columns: int) -> list[Pieces]:
    """The roofs as lines of their device's figure, operators as their letters."""
    drawing = _Drawing(roof, min(max(columns, 40), 120) - 9)
    for place, device in enumerate(roof.devices):
        drawing.draw_roof(place, device)
    for device in roof.devices:
        drawing.draw_operators(device, letters(roof))
    return drawing.lines()


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
        style = LOOKS[look_of(place)].terminal
        for column in range(self.columns):
            intensity = 10 ** (self.left + column / (self.columns - 1) * (self.right - self.left))
            rate = min(device.peak_flops_per_second, intensity * device.bandwidth_bytes_per_second)
            row = self.row(rate)
            if 0 <= row < PLOT_ROWS:
                flat = intensity >= device.ridge_flops_per_byte
                self.cells[row, column] = ("─" if flat else "╱", style)
        end = self.row(device.peak_flops_per_second)
        self.cells[end, self.columns - 1] = (str(place + 1), f"bold {style}")

    def draw_operators(self, device: DeviceRoofline, names: list[str]) -> None:
        """The least expensive first, so that those that matter stay on top."""
        order = sorted(range(len(names)), key=lambda index: device.operators[index].share)
        for index in order:
            one = device.operators[index]
            if not one.flops:
                continue
            row = self.row(one.attainable_flops_per_second)
            column = self.column(one.intensity_flops_per_byte)
            self.cells[row, column] = (names[index], f"bold {_BOUND[one.bound]}")

    def lines(self) -> list[Pieces]:
        marks = {self.row(10.0**power): power for power in self._decades(self.bottom, self.top)}
        drawn: list[Pieces] = [[("FLOP/s".rjust(8), "dim")]]
        for row in range(PLOT_ROWS):
            label = _short_rate(marks[row]) if row in marks else ""
            margin = f"{label:>8}┤" if label else " " * 8 + "│"
            cells = [self.cells.get((row, column), (" ", "")) for column in range(self.columns)]
            drawn.append([(margin, "dim"), *cells])
        axis, labels = ["─"] * self.columns, [" "] * self.columns
        for power in self._decades(self.left, self.right):
            column = self.column(10.0**power)
            axis[column] = "┬"
            label = f"{10.0**power:g}"
            for offset, sign in enumerate(label):
                if column + offset < self.columns:
                    labels[column + offset] = sign
        below = (" " * 8 + "└" + "".join(axis), " " * 9 + "".join(labels))
        drawn += [[(text, "dim")] for text in (*below, "FLOP/byte".rjust(self.columns + 9))]
        return drawn

    @staticmethod
    def _decades(low: float, high: float) -> range:
        return range(math.ceil(low), math.floor(high) + 1)


def _short_rate(power: int) -> str:
    prefixes = {15: "P", 12: "T", 9: "G", 6: "M", 3: "k"}
    base = max((size for size in prefixes if size <= power), default=0)
    return f"{10 ** (power - base)} {prefixes.get(base, '')}".rstrip()
