"""What `ridgeline trace …` shows: one document per question, from the records that answer it.

The columns of each question serve its table in a terminal and on the page of `trace report`, which
shows more of them. Names of kernels are long and come from a file: they are the first to give way.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import msgspec

from ridgeline import quantity
from ridgeline.records.finding import TraceFinding
from ridgeline.report import document as doc
from ridgeline.report.views.trace_verdict import verdict_blocks
from ridgeline.trace.kernel_names import short_name

if TYPE_CHECKING:
    from ridgeline.trace.communication.collectives import RankCommunication
    from ridgeline.trace.communication.overlap import RankOverlap
    from ridgeline.trace.time.idle import RankIdle
    from ridgeline.trace.time.kernels import RankKernels
    from ridgeline.trace.time.launch import RankLaunches
    from ridgeline.trace.time.operators import RankOperators
    from ridgeline.trace.time.steps import RankSteps
    from ridgeline.trace.time.summary import RankSummary
    from ridgeline.trace.time.sync import RankSync

ROWS = 12
_WORTH_A_COLUMN = 0.001


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
    doc.Column("mean_us"),
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
    doc.Column("bus_bytes_per_second", "bus bandwidth"),
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
    shown = (doc.words("rank"), *columns) if several else tuple(columns)
    return doc.DataTable(shown, rows, sortable=sortable)


def table_of(columns: Sequence[doc.Column], records: Iterable[Any]) -> doc.DataTable:
    """The fields of the records of one rank."""
    return rows_of(columns, (("", record) for record in records))


def _cell(column: doc.Column, value: Any) -> doc.Cell:
    if column.kind == "name" and value is not None:
        return short_name(str(value))
    found: doc.Cell = value.removesuffix("_wait") if column.field == "cause" else value
    return found


# -- what bounds a run -----------------------------------------------------------------------------


def verdict_document(findings: Sequence[TraceFinding]) -> doc.ReportDocument:
    """What bounds the run, then everything else that was found."""
    return doc.ReportDocument("Verdict", verdict_blocks(findings))


def summary_document(
    ranks: Sequence[RankSummary], verdict: Sequence[TraceFinding]
) -> doc.ReportDocument:
    """One row per GPU, then the causes, then what the reader had to say about the files."""
    fields = {
        "busy": "busy_us",
        "compute": "compute_us",
        "comm": "communication_us",
        "exposed": "communication_exposed_us",
        "copies": "copy_us",
        "idle": "idle_us",
        "host": "host_wait_us",
        "depend": "dependency_wait_us",
        "kernel": "kernel_wait_us",
        "unknown": "unknown_wait_us",
    }
    working = [rank for rank in ranks if rank.gpu_events]
    shown = {
        title: field
        for title, field in fields.items()
        if title in ("busy", "idle")
        or any(getattr(rank, field) >= _WORTH_A_COLUMN * rank.window_us for rank in working)
    }
    rows = [
        doc.TableRow((_who(rank), rank.window_us,
             *(_share(getattr(rank, field), rank.window_us) for field in shown.values())))
        for rank in working
    ]  # fmt: skip
    whole = sum(rank.window_us for rank in working)
    if len(working) > 1:
        totals = (sum(getattr(rank, field) for rank in working) for field in shown.values())
        mean = ("mean", whole / len(working), *(_share(total, whole) for total in totals))
        rows.append(doc.TableRow(mean, "strong"))
    blocks: list[doc.Block] = []
    if working:
        columns = (
            doc.words("rank"),
            doc.Column("window_us"),
            *(doc.Column("share", title) for title in shown),
        )
        blocks.append(doc.DataTable(columns, rows))
        steps = ranks[0].window == "steps"
        about = "whole profiler steps" if steps else "the whole trace"
        said = "shares of it. host, depend, kernel, unknown: causes of idle"
        blocks.append(doc.Paragraph(f"Window: {about}; {said}", "dim"))
    used = [rank.flops_utilization for rank in working if rank.flops_utilization is not None]
    if used:
        share = quantity.percent(sum(used) / len(used))
        blocks.append(
            doc.Paragraph(f"Matrix products, convolutions, attention: {share} of the peak FLOP/s")
        )
    if verdict:
        blocks.append(doc.Chapter("What bounds it", verdict_blocks(verdict)))
    warned = dict.fromkeys(
        f"{os.path.basename(rank.file)}: {warning}" for rank in ranks for warning in rank.warnings
    )
    return doc.ReportDocument("Trace", [*blocks, doc.Lines(list(warned), "warning")])


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
        if rank.tensor_core_share is not None:
            share = quantity.percent(rank.tensor_core_share)
            facts.append(f"{share} of matrix time by name on tensor cores")
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


def overlap_document(ranks: Sequence[RankOverlap]) -> doc.ReportDocument:
    """Communication hidden and exposed, per GPU."""
    columns = (
        doc.words("rank"),
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
            _who(rank),
            rank.window_us,
            rank.compute_us,
            rank.communication_us,
            "–" if rank.overlap_ratio is None else rank.overlap_ratio,
            rank.exposed_us,
            rank.exposed_share,
            rank.copy_us,
            _share(rank.copy_overlap_us, rank.copy_us),
        )
        for rank in ranks
    ]
    return doc.ReportDocument("Overlap", [doc.DataTable(columns, rows)])


def communication_document(ranks: Sequence[RankCommunication]) -> doc.ReportDocument:
    """The collectives of each GPU, with their bandwidth."""
    shown: list[doc.Block] = []
    for rank in ranks:
        if not rank.calls:
            shown.append(title(rank, "no communication"))
            continue
        exposed = quantity.microseconds(rank.exposed_us)
        total = quantity.microseconds(rank.communication_us)
        shown.append(title(rank, f"communication {total}, exposed {exposed}"))
        shown.append(table_of(COLLECTIVES, rank.collectives))
    return doc.ReportDocument("Communication", shown)


def launch_document(ranks: Sequence[RankLaunches]) -> doc.ReportDocument:
    """How each GPU was fed."""
    columns = (
        doc.words("rank"),
        doc.words("bound"),
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
            _who(rank),
            "yes" if rank.launch_bound else "no",
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
        "bound: is the GPU launch-bound? delay: median from launch to start; "
        "queue: mean depth of the deepest stream; short: kernels under 5 µs; in graphs: of GPU time"
    )
    return doc.ReportDocument(
        "Launches", [doc.DataTable(columns, rows), doc.Paragraph(note, "dim")]
    )


def sync_document(ranks: Sequence[RankSync]) -> doc.ReportDocument:
    """Waits of the host, per rank."""
    shown: list[doc.Block] = []
    for rank in ranks:
        blocked, idle = map(quantity.microseconds, (rank.host_us, rank.gpu_gap_us))
        said = f"{rank.count} waits block the host for {blocked}; GPU idle around them {idle}"
        shown.append(title(rank, said))
        shown += [table_of(SYNC, rank.points)] if rank.points else []
    return doc.ReportDocument("Synchronisation", shown)


def steps_document(ranks: Sequence[RankSteps]) -> doc.ReportDocument:
    """Steps and their phases, per rank."""
    shown: list[doc.Block] = []
    for rank in ranks:
        if not rank.steps or rank.mean_us is None:
            said = "no ProfilerStep; call profiler.step() once per step"
            shown.append(title(rank, said))
            continue
        spread = f" ± {quantity.microseconds(rank.spread_us)}" if rank.spread_us is not None else ""
        shown.append(title(rank, f"{quantity.microseconds(rank.mean_us)}{spread} per step"))
        phases = [
            phase
            for phase in rank.steps[0].phases_us
            if any(step.phases_us[phase] for step in rank.steps)
        ]
        spoken = any(step.communication_exposed_us for step in rank.steps)
        columns = (
            doc.Column("step"),
            doc.Column("length_us"),
            *(doc.Column("us", phase) for phase in phases),
            doc.Column("us", "GPU busy"),
            doc.Column("us", "exposed"),
            doc.words("remark", ""),
        )
        rows = [
            (
                str(step.number),
                step.length_us,
                *(step.phases_us[phase] for phase in phases),
                step.gpu_busy_us,
                step.communication_exposed_us if spoken else None,
                "outlier" if step.outlier else "" if step.whole else "no end",
            )
            for step in rank.steps
        ]
        shown.append(doc.DataTable(columns, rows))
    return doc.ReportDocument("Steps", shown)


def operators_document(ranks: Sequence[RankOperators]) -> doc.ReportDocument:
    """Operators per rank, with the shape or the line that they are grouped by."""
    shown: list[doc.Block] = []
    for rank in ranks:
        shown.append(title(rank, f"{quantity.count(rank.count)} operator calls"))
        if rank.by == "name":
            shown.append(table_of(OPERATORS, rank.operators))
            continue
        first, *others = OPERATORS
        rows = [
            (
                short_name(use.name),
                (_dims(use.shapes) if rank.by == "shape" else use.line) or "–",
                *(getattr(use, column.field) for column in others),
            )
            for use in rank.operators
        ]
        shown.append(doc.DataTable((first, doc.name(rank.by), *others), rows))
    return doc.ReportDocument("Operators", shown)


def _dims(shapes: str | None) -> str | None:
    """The shapes of an operator, `[[[8,4],[]],["float","Scalar"]]` as `8×4`."""
    if shapes is None:
        return None
    dims = msgspec.json.decode(shapes)[0]
    return ", ".join("×".join(map(str, dim)) for dim in dims if dim) or "scalars"


# -- words -----------------------------------------------------------------------------------------


def _who(record: object) -> str:
    """The rank that a record is about, else its file."""
    rank, device = getattr(record, "rank", None), getattr(record, "device", None)
    called = os.path.basename(getattr(record, "file", "")) if rank is None else f"rank {rank}"
    return called if not device or rank == device else f"{called} gpu {device}"


def title(record: object, said: str) -> doc.Paragraph:
    """A line that begins with the rank that a record is about."""
    shown: doc.Words = (doc.Phrase(_who(record), "strong"), f": {said}")
    return doc.Paragraph(shown)


def _pairs(title: str, values: Mapping[str, float]) -> doc.Paragraph:
    shown = [f"{name} {quantity.microseconds(us)}" for name, us in values.items() if us > 0]
    return doc.Paragraph(f"{title}: {', '.join(shown) or 'nothing'}")


def _share(part: float, whole: float) -> float | str:
    return part / whole if whole > 0 else "–"


def _percent(part: float, whole: float) -> str:
    return quantity.percent(part / whole) if whole > 0 else "–"
