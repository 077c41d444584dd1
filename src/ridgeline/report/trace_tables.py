"""The tables of a trace's page: one section per question, from the records as they are.

A column is a field of a record; its unit, which its name ends with, says how it is shown. Every
cell carries its plain value for the page's script to sort by.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import Any

from ridgeline import quantity
from ridgeline.report.markup import Markup, element
from ridgeline.report.sections import section
from ridgeline.report.trace_rank import TracePageRank
from ridgeline.trace.kernel_names import short_name
from ridgeline.trace.stragglers import Stragglers

RANKS_IN_DETAIL = 8
"""Ranks whose own rows are listed where every rank has many."""
ROWS = 200

_UNITS: tuple[tuple[str, Callable[[float], str]], ...] = (
    ("_us", lambda value: quantity.seconds(value * 1e-6)),
    ("bytes_per_second", lambda value: quantity.scaled(value, "B/s")),
    ("flops_per_second", lambda value: quantity.scaled(value, "FLOP/s")),
    ("bytes", quantity.memory),
    ("share", quantity.percent),
    ("ratio", quantity.percent),
    ("percent", lambda value: f"{value:.0f} %"),
)


def every_section(ranks: Sequence[TracePageRank], together: Stragglers | None) -> list[Markup]:
    """A section per question that the traces can answer."""
    found = [
        _of("Ranks", "Where the window of each GPU went.",
            ((name, fact.summary) for name, rank in _named(ranks) for fact in rank.facts),
            ("device", "window_us", "busy_us", "idle_us", "compute_us", "communication_us",
             "communication_exposed_us", "copy_us", "host_wait_us", "dependency_wait_us",
             "kernel_wait_us", "unknown_wait_us", "gpu_events", "steps", "step_us")),
        _stragglers(together),
        _path(ranks),
        _of("Idle gaps", "The largest gaps of the GPU, with what the launching thread did.",
            ((name, gap) for name, rank in _detailed(ranks) for one in rank.idle
             for gap in one.gaps),
            ("start_us", "length_us", "cause", "host_call", "line", "next_event")),
        _of("Kernels", "",
            ((name, use) for name, rank in _detailed(ranks) for one in rank.kernels
             for use in one.kernels),
            ("name", "kernel_class", "count", "total_us", "share", "mean_us", "max_us",
             "tensor_cores", "occupancy_percent", "launch_delay_us")),
        _of("Roofline",
            "Kernels whose operators' shapes are in the trace: FLOPs and least memory traffic by "
            "those shapes, and what they attain of what the device allows.",
            ((name, use) for name, rank in _detailed(ranks) for one in rank.kernels
             for use in one.kernels if use.roofline is not None),
            ("name", "total_us", "roofline.known_share", "roofline.intensity_flops_per_byte",
             "roofline.flops_per_second", "roofline.bytes_per_second", "roofline.arithmetic",
             "roofline.bound", "roofline.attained_percent")),
        _of("Classes of kernels", "",
            ((name, use) for name, rank in _detailed(ranks) for one in rank.kernels
             for use in one.classes),
            ("name", "count", "total_us", "share")),
        _of("Exposed communication and copies", "What runs with no compute beside it.",
            ((name, use) for name, rank in _detailed(ranks) for one in rank.overlap
             for use in one.kernels),
            ("name", "count", "total_us", "exposed_us")),
        _of("Collectives", "On one rank the time holds waiting: bandwidth is at least this.",
            ((name, use) for name, rank in _detailed(ranks) for one in rank.communication
             for use in one.collectives),
            ("kind", "group", "group_size", "bytes", "count", "total_us", "min_us", "max_us",
             "algorithm_bytes_per_second", "bus_bytes_per_second", "link_share")),
        _of("Launches", "",
            ((name, one) for name, rank in _detailed(ranks) for one in rank.launches),
            ("gpu_events", "launched", "launch_calls", "launch_call_us", "host_wait_share",
             "launch_bound", "kernels_under_5us_share", "graph_launches", "graph_time_share")),
        _of("Synchronisation", "Waits of the host for the GPU.",
            ((name, point) for name, rank in _detailed(ranks) for point in rank.sync.points),
            ("call", "operator", "line", "count", "host_us", "longest_us", "gpu_gap_us")),
        _of("Steps", "",
            ((name, step) for name, rank in _detailed(ranks) for step in rank.steps.steps),
            ("number", "length_us", "whole", "gpu_busy_us", "gpu_idle_us",
             "communication_exposed_us", "outlier")),
        _of("Operators", "",
            ((name, one) for name, rank in _detailed(ranks) for one in rank.operators.operators),
            ("name", "count", "host_total_us", "host_self_us", "gpu_total_us", "gpu_self_us",
             "flops_per_second")),
        _of("Memory", "Allocated at the peak.",
            ((name, one) for name, rank in _detailed(ranks) for device in rank.memory.devices
             for one in device.holders),
            ("operator", "line", "phase", "bytes", "allocations")),
        _of("Memory from step to step", _growth_note(ranks),
            ((name, one) for name, rank in _detailed(ranks) for device in rank.memory.devices
             if device.growth.verdict == "grows" for one in device.growth.steps),
            ("number", "lowest_bytes", "highest_bytes", "end_bytes")),
        _of("Memory that is kept", "Allocated in a step and never freed.",
            ((name, one) for name, rank in _detailed(ranks) for device in rank.memory.devices
             for one in device.growth.kept),
            ("operator", "line", "phase", "bytes", "allocations")),
    ]  # fmt: skip
    return [part for part in found if part is not None]


def _named(ranks: Sequence[TracePageRank]) -> Iterable[tuple[str, TracePageRank]]:
    for place, rank in enumerate(ranks):
        yield str(place if rank.rank is None else rank.rank), rank


def _detailed(ranks: Sequence[TracePageRank]) -> Iterable[tuple[str, TracePageRank]]:
    return list(_named(ranks))[:RANKS_IN_DETAIL]


def _of(
    title: str, note: str, rows: Iterable[tuple[str, Any]], columns: Sequence[str]
) -> Markup | None:
    """A section with the columns that any row has a value for; none without rows."""
    taken = list(rows)
    if not taken:
        return None
    value = {name: attrgetter(name) for name in columns}
    shown = [name for name in columns if any(value[name](row) is not None for _, row in taken)]
    several = len({rank for rank, _ in taken}) > 1
    header = (["rank"] if several else []) + [_title(name) for name in shown]
    body = []
    for rank, row in taken[:ROWS]:
        cells = [_cell("rank", rank)] if several else []
        cells += [_cell(name, value[name](row)) for name in shown]
        body.append(element("tr", *cells))
    if len(taken) > ROWS:
        note = f"{note} The first {ROWS} of {len(taken)} rows.".strip()
    return section(title, note, _sortable(header, body))


def _growth_note(ranks: Sequence[TracePageRank]) -> str:
    return " ".join(
        f"Rank {name}, {device.device}: memory {device.growth.sentence}."
        for name, rank in _detailed(ranks)
        for device in rank.memory.devices
        if device.growth.verdict == "grows"
    )


def _stragglers(together: Stragglers | None) -> Markup | None:
    if together is None or not together.matched:
        return None
    note = (
        f"{together.matched} collectives were matched across ranks: transfers need "
        f"{quantity.seconds(together.transfer_us * 1e-6)}, all ranks together waited "
        f"{quantity.seconds(together.waited_us * 1e-6)} for the last to arrive. "
        + " ".join(together.warnings)
    )
    columns = ("rank", "last_arrivals", "caused_wait_us", "skew_wait_us", "communication_us",
               "clock_offset_us")  # fmt: skip
    rows = [
        element("tr", *(_cell(name, getattr(row, name)) for name in columns))
        for row in together.ranks
    ]
    return section("Stragglers", note, _sortable([_title(name) for name in columns], rows))


def _path(ranks: Sequence[TracePageRank]) -> Markup | None:
    rows = []
    for name, rank in _detailed(ranks):
        for part in rank.path.names[:20]:
            rows.append(
                element("tr", _cell("rank", name), _cell("kind", part.kind),
                        _cell("name", part.name), _cell("_us", part.us),
                        _cell("share", part.share), _cell("pieces", part.pieces))
            )  # fmt: skip
    if not rows:
        return None
    note = (
        "The chain of launches, kernels and waits that made each rank's window as long as it was."
    )
    return section(
        "Critical path", note, _sortable(["rank", "kind", "name", "time", "share", "pieces"], rows)
    )


def _sortable(header: Sequence[str], rows: Sequence[Markup]) -> Markup:
    head = element("thead", element("tr", *(element("th", name, tabindex="0") for name in header)))
    table = element("table", head, element("tbody", *rows), class_="sortable")
    search = (
        [element("input", class_="filter", type="search", placeholder="filter rows",
                 aria_label="filter rows")]
        if len(rows) > 5
        else []
    )  # fmt: skip
    return element("div", *search, element("div", table, class_="scroll"))


def _title(name: str) -> str:
    name = name.rpartition(".")[2]
    for ending in ("_us", "_bytes_per_second", "_per_second"):
        name = name.removesuffix(ending)
    return name.replace("_", " ")


def _cell(name: str, value: Any) -> Markup:
    if value is None:
        return element("td", "", data_value="")
    if isinstance(value, bool):
        return element("td", "yes" if value else "", data_value=str(int(value)))
    if isinstance(value, (int, float)):
        text = next((show(value) for unit, show in _UNITS if name.endswith(unit)), None)
        return element(
            "td", text if text is not None else quantity.count(value), class_="number",
            data_value=f"{value:.6g}",
        )  # fmt: skip
    text = short_name(str(value))
    return element("td", text[:100], title=str(value)[:400], data_value=text[:100])
