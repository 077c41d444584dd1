"""What `ridgeline trace …` shows: one document per question, from the records that answer it.

The columns of each question serve its table in a terminal and on the page of `trace report`, which
shows more of them. Names of kernels are long and come from a file: they are the first to give way.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from ridgeline import quantity
from ridgeline.report import document as doc
from ridgeline.trace.kernel_names import short_name

if TYPE_CHECKING:
    from ridgeline.trace.communication.collectives import RankCommunication
    from ridgeline.trace.communication.host_collectives import HostCommunication
    from ridgeline.trace.communication.overlap import RankOverlap
    from ridgeline.trace.time.idle import RankIdle
    from ridgeline.trace.time.kernels import RankKernels
    from ridgeline.trace.time.launch import RankLaunches

ROWS = 12


def on_page(field: str, title: str | None = None) -> doc.Column:
    """A column that the page alone has room for."""
    return doc.Column(field, title, only="page")


GAPS = (
    on_page("start_us"),
    doc.Column("length_us", "gap"),
    doc.words("cause"),
    doc.name("host_call"),
    doc.name("line"),
    doc.name("next_event", "next on the GPU"),
)
KERNELS = (
    doc.name("name", "kernel"),
    doc.words("kernel_class", "class"),
    doc.Column("count"),
    doc.Column("total_us"),
    doc.Column("share"),
    on_page("mean_us"),
    doc.Column("median_us"),
    on_page("p90_us"),
    on_page("p99_us"),
    on_page("max_us"),
    on_page("tensor_cores"),
    on_page("occupancy_percent"),
    doc.Column("launch_delay_us", "delay"),
)
ROOFLINE = (
    doc.name("name", "kernel"),
    on_page("total_us"),
    on_page("roofline.known_share", "known"),
    doc.Column("roofline.intensity_flops_per_byte", "FLOP/byte"),
    doc.Column("roofline.flops_per_second", "arithmetic"),
    doc.Column("roofline.bytes_per_second", "memory"),
    doc.words("roofline.dtype", "dtype"),
    doc.words("roofline.bound", "bound"),
    doc.Column("roofline.attained_percent", "attained"),
)
ROOFLINE_NOTE = (
    "Kernels whose operators' shapes are in the trace: FLOPs and least memory traffic by those"
    " shapes, and what they attain of what the device's roofline allows."
)
CLASSES = (
    doc.words("name", "class"),
    doc.Column("count"),
    doc.Column("total_us"),
    doc.Column("share"),
)
EXPOSED = (
    doc.name("name", "kernel"),
    doc.Column("count"),
    doc.Column("total_us"),
    doc.Column("exposed_us"),
)
COLLECTIVES = (
    doc.words("kind", "collective"),
    doc.name("group"),
    on_page("group_size"),
    doc.Column("bytes", "size"),
    doc.Column("count"),
    doc.Column("total_us"),
    doc.Column("median_us"),
    on_page("min_us"),
    on_page("max_us"),
    on_page("algorithm_bytes_per_second", "algorithm bandwidth"),
    doc.Column("bus_bytes_per_second", "bus, median"),
    on_page("fastest_bus_bytes_per_second", "bus, fastest"),
    doc.Column("link_share", "of link"),
)
SYNC = (
    doc.name("call"),
    doc.name("operator"),
    doc.name("line"),
    doc.Column("count"),
    doc.Column("host_us"),
    doc.Column("longest_us"),
    doc.Column("gpu_gap_us", "GPU gap"),
)
OPERATORS = (
    doc.name("name", "operator"),
    doc.Column("count"),
    doc.Column("host_self_us"),
    doc.Column("host_total_us"),
    doc.Column("gpu_self_us", "GPU self"),
    doc.Column("gpu_total_us", "GPU total"),
    doc.Column("flops_per_second", "rate"),
)
HOLDERS = (
    doc.name("operator"),
    doc.name("line"),
    doc.words("phase"),
    doc.Column("allocations"),
    doc.Column("bytes"),
)
LEVELS = (
    doc.Column("number", "step"),
    doc.Column("lowest_bytes"),
    doc.Column("highest_bytes"),
    doc.Column("end_bytes", "at its end"),
)
PARTS = (
    doc.words("kind"),
    doc.name("name"),
    doc.Column("us", "time"),
    doc.Column("share"),
    doc.Column("pieces"),
)


def rows_of(
    columns: Sequence[doc.Column], records: Iterable[tuple[str, Any]], *, sortable: bool = False
) -> doc.DataTable:
    """The fields of records, beside the rank that each is of where there are several."""
    taken = list(records)
    several = len({rank for rank, _ in taken}) > 1
    rows = []
    for rank, record in taken:
        cells = [_cell(column, attrgetter(column.field)(record)) for column in columns]
        rows.append((rank, *cells) if several else tuple(cells))
    shown = (doc.name("rank"), *columns) if several else tuple(columns)
    return doc.DataTable(shown, rows, sortable=sortable)


def table_of(columns: Sequence[doc.Column], records: Iterable[Any]) -> doc.DataTable:
    """The fields of the records of one rank."""
    return rows_of(columns, (("", record) for record in records))


def _cell(column: doc.Column, value: Any) -> doc.Cell:
    if column.kind == "name" and value is not None:
        return short_name(str(value))
    if column.field == "tensor_cores":
        return {True: "yes", False: "no", None: "unknown"}[value]
    found: doc.Cell = value.removesuffix("_wait") if column.field == "cause" else value
    return found


# -- one question each -----------------------------------------------------------------------------


def idle_document(ranks: Sequence[RankIdle]) -> doc.ReportDocument:
    """Causes, what the host did, and the largest gaps, per GPU."""
    shown: list[doc.Block] = []
    for rank in ranks:
        idle = f"idle {_percent(rank.idle_us, rank.window_us)} of"
        causes = {
            "host": rank.host_wait_us,
            "dependency": rank.dependency_wait_us,
            "kernel": rank.kernel_wait_us,
            "unknown": rank.unknown_wait_us,
        }
        shown.append(title(rank, f"{idle} {quantity.microseconds(rank.window_us)}"))
        shown.append(_pairs("waits", causes))
        shown += [_pairs("during host wait", rank.host_wait_by), table_of(GAPS, rank.gaps)]
    return doc.ReportDocument("Idle time", shown)


def kernels_document(ranks: Sequence[RankKernels]) -> doc.ReportDocument:
    """Classes and the most expensive kernels, per GPU."""
    shown: list[doc.Block] = []
    for rank in ranks:
        facts = [f"{quantity.count(rank.events)} GPU events of {rank.names} names"]
        if rank.tensor_core_unknown_share is not None:
            facts.append(_tensor_cores(rank.tensor_core_share, rank.tensor_core_unknown_share))
        if rank.unknown_share:
            facts.append(f"{quantity.percent(rank.unknown_share)} in kernels of unknown class")
        if rank.sm_efficiency is not None:
            facts.append(f"SM efficiency {quantity.percent(rank.sm_efficiency)} (estimate)")
        if rank.occupancy_percent is not None:
            facts.append(f"occupancy {rank.occupancy_percent:.0f} % (estimate)")
        shown.append(title(rank, ", ".join(facts)))
        shown.append(_pairs("by class", {use.name: use.total_us for use in rank.classes}))
        shown.append(table_of(KERNELS, rank.kernels))
        placed = [use for use in rank.kernels if use.roofline is not None]
        if placed:
            shown.append(
                doc.Chapter("Under the roofline", [table_of(ROOFLINE, placed)], ROOFLINE_NOTE)
            )
    return doc.ReportDocument("Kernels", shown)


def _tensor_cores(share: float | None, unknown: float) -> str:
    """How much of the matrix time is on them, by what the names say, and how much is not said."""
    known = (
        {} if share is None else {"yes": share * (1 - unknown), "no": (1 - share) * (1 - unknown)}
    )
    parts = {**known, "unknown": unknown}
    said = ", ".join(f"{word} {quantity.percent(part)}" for word, part in parts.items() if part > 0)
    return f"tensor cores by name, of matrix time: {said}"


def overlap_document(ranks: Sequence[RankOverlap]) -> doc.ReportDocument:
    """Communication hidden and exposed, per GPU."""
    columns = (
        doc.name("rank"),
        doc.Column("window_us"),
        doc.Column("compute_us"),
        doc.Column("communication_us", "comm"),
        doc.Column("hidden_share", "hidden"),
        doc.Column("exposed_us"),
        doc.Column("exposed_share", "share"),
        doc.Column("copy_us", "copies"),
        doc.Column("copy_share", "hidden"),
    )
    rows = [
        (
            who(rank),
            rank.window_us,
            rank.compute_us,
            rank.communication_us,
            "–" if rank.overlap_ratio is None else rank.overlap_ratio,
            rank.exposed_us,
            rank.exposed_share,
            rank.copy_us,
            share_of(rank.copy_overlap_us, rank.copy_us),
        )
        for rank in ranks
    ]
    return doc.ReportDocument("Overlap", [doc.DataTable(columns, rows)])


def communication_document(
    ranks: Sequence[RankCommunication | HostCommunication],
) -> doc.ReportDocument:
    """The collectives of each GPU, and of the host, with their bandwidth."""
    shown: list[doc.Block] = []
    for rank in ranks:
        if not rank.calls:
            shown.append(title(rank, "no communication"))
            continue
        total = quantity.microseconds(rank.communication_us)
        exposed: float | None = getattr(rank, "exposed_us", None)
        where = "on the host" if exposed is None else f"exposed {quantity.microseconds(exposed)}"
        shown.append(title(rank, f"communication {total}, {where}"))
        shown.append(table_of(COLLECTIVES, rank.collectives))
    return doc.ReportDocument("Communication", shown)


def launch_document(ranks: Sequence[RankLaunches]) -> doc.ReportDocument:
    """How each GPU was fed."""
    columns = (
        doc.name("rank"),
        doc.words("empty"),
        doc.Column("share", "host wait"),
        doc.Column("delay_us"),
        doc.Column("queue"),
        doc.Column("share", "short"),
        doc.Column("launches"),
        doc.Column("graphs"),
        doc.Column("share", "in graphs"),
    )
    rows = [
        (
            who(rank),
            "yes" if rank.queue_empty else "no",
            rank.host_wait_share,
            rank.delay_us.get("median"),
            f"{max((queue.mean_depth for queue in rank.queues), default=0.0):.1f}",
            rank.kernels_under_5us_share,
            rank.launch_calls,
            rank.graph_launches,
            rank.graph_time_share,
        )
        for rank in ranks
    ]
    note = (
        "empty: does the GPU wait for the host and start at once what it gets? delay: median "
        "from launch to start; "
        "queue: mean depth of the deepest stream; short: kernels under 5 µs; in graphs: of GPU time"
    )
    return doc.ReportDocument(
        "Launches", [doc.DataTable(columns, rows), doc.Paragraph(note, "dim")]
    )


# -- words -----------------------------------------------------------------------------------------


def who(record: object) -> str:
    """The rank that a record is about, else its file."""
    rank, device = getattr(record, "rank", None), getattr(record, "device", None)
    called = os.path.basename(getattr(record, "file", "")) if rank is None else f"rank {rank}"
    return called if not device or rank == device else f"{called} gpu {device}"


def title(record: object, said: str) -> doc.Paragraph:
    """A line that begins with the rank that a record is about."""
    shown: doc.Words = (doc.Phrase(who(record), "strong"), f": {said}")
    return doc.Paragraph(shown)


def _pairs(title: str, values: Mapping[str, float]) -> doc.Paragraph:
    shown = [f"{name} {quantity.microseconds(us)}" for name, us in values.items() if us > 0]
    return doc.Paragraph(f"{title}: {', '.join(shown) or 'nothing'}")


def share_of(part: float, whole: float) -> float | str:
    """The share, or a dash where there is no whole."""
    return part / whole if whole > 0 else "–"


def _percent(part: float, whole: float) -> str:
    return quantity.percent(part / whole) if whole > 0 else "–"
