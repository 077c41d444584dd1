"""What `ridgeline trace …` shows in a terminal, drawn from the records of `trace/`.

Names of kernels are long and come from a file: they travel as `Text`, cut with an ellipsis.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence

import msgspec
from rich.console import Group, RenderableType
from rich.text import Text

from ridgeline import quantity
from ridgeline.records.trace_finding import TraceFinding
from ridgeline.report.fitted_table import FittedTable
from ridgeline.trace.communication import RankCommunication
from ridgeline.trace.idle import RankIdle
from ridgeline.trace.kernels import RankKernels
from ridgeline.trace.launch import RankLaunches
from ridgeline.trace.memory import DeviceMemory, RankMemory
from ridgeline.trace.memory_holders import MemoryHolder
from ridgeline.trace.operators import RankOperators
from ridgeline.trace.overlap import RankOverlap
from ridgeline.trace.steps import PHASES, RankSteps
from ridgeline.trace.summary import RankSummary
from ridgeline.trace.sync import RankSync

_WORTH_A_COLUMN = 0.001


def summary_view(ranks: Sequence[RankSummary], verdict: Sequence[TraceFinding]) -> RenderableType:
    """One row per GPU, then the causes, then what the reader had to say about the files."""
    columns = {
        "busy": "busy_us", "compute": "compute_us", "comm": "communication_us",
        "exposed": "communication_exposed_us", "copies": "copy_us", "idle": "idle_us",
        "host": "host_wait_us", "depend": "dependency_wait_us", "kernel": "kernel_wait_us",
        "unknown": "unknown_wait_us",
    }  # fmt: skip
    working = [rank for rank in ranks if rank.gpu_events]
    shown = {
        name: key
        for name, key in columns.items()
        if name in ("busy", "idle")
        or any(getattr(rank, key) >= _WORTH_A_COLUMN * rank.window_us for rank in working)
    }
    table = _table("rank", "window", *shown)
    for rank in working:
        shares = (_share(getattr(rank, key), rank.window_us) for key in shown.values())
        table.add_row(_rank(rank), _us(rank.window_us), *shares)
    if len(working) > 1:
        whole = sum(rank.window_us for rank in working)
        total = {key: sum(getattr(rank, key) for rank in working) for key in shown.values()}
        shares = (_share(total[key], whole) for key in shown.values())
        table.add_row("mean", _us(whole / len(working)), *shares, style="bold")
    named = ranks[0].window if ranks else "trace"
    about = "whole profiler steps" if named == "steps" else "the whole trace"
    note = f"Window: {about}; shares of it. host, depend, kernel, unknown: causes of idle"
    parts: list[RenderableType] = [table, Text(note, style="dim")] if working else []
    used = [rank.flops_utilization for rank in working if rank.flops_utilization is not None]
    if used:
        share = quantity.percent(sum(used) / len(used))
        parts.append(Text(f"Products, convolutions, attention: {share} of the peak FLOP/s"))
    parts += [_cause(finding, leads=number == 0) for number, finding in enumerate(verdict)]
    return Group(*parts, *_warnings((rank.file, rank.warnings) for rank in ranks))


def _cause(finding: TraceFinding, *, leads: bool) -> Text:
    worth = f"{_us(finding.worth_us)}, {quantity.percent(finding.share)} of the window"
    text = Text(f"\n{finding.cause}", style="bold yellow" if leads else "bold")
    text.append(f" ({worth}, confidence {finding.confidence:.2f})", style="not bold default")
    return text.append(f"\n  {finding.cure}", style="not bold default")


def idle_view(ranks: Sequence[RankIdle]) -> RenderableType:
    """Causes, what the host did, and the largest gaps, per GPU."""
    shown: list[RenderableType] = []
    for rank in ranks:
        shown.append(_title(rank, f"idle {_share(rank.idle_us, rank.window_us)} of "
                                  f"{_us(rank.window_us)}"))  # fmt: skip
        causes = [("host", rank.host_wait_us), ("dependency", rank.dependency_wait_us),
                  ("kernel", rank.kernel_wait_us), ("unknown", rank.unknown_wait_us)]  # fmt: skip
        shown.append(_pairs("waits", causes))
        shown.append(_pairs("during host wait", rank.host_wait_by.items()))
        table = _table("gap", "cause", "host call", "line", "next on the GPU")
        for gap in rank.gaps:
            cause = gap.cause.removesuffix("_wait")
            table.add_row(_us(gap.length_us), Text(cause), _name(gap.host_call), _name(gap.line),
                          _name(gap.next_event))  # fmt: skip
        shown += [table, Text()]
    return Group(*shown)


def kernels_view(ranks: Sequence[RankKernels]) -> RenderableType:
    """Classes and the most expensive kernels, per GPU."""
    shown: list[RenderableType] = []
    for rank in ranks:
        facts = [f"{quantity.count(rank.events)} GPU events of {rank.names} names"]
        if rank.tensor_core_share is not None:
            facts.append(f"{quantity.percent(rank.tensor_core_share)} of matrix time by name on "
                         "tensor cores")  # fmt: skip
        if rank.sm_efficiency is not None:
            facts.append(f"SM efficiency {quantity.percent(rank.sm_efficiency)} (estimate)")
        if rank.occupancy_percent is not None:
            facts.append(f"occupancy {rank.occupancy_percent:.0f} % (estimate)")
        shown += [_title(rank, ", ".join(facts))]
        shown.append(_pairs("by class", [(use.name, use.total_us) for use in rank.classes]))
        table = _table("kernel", "class", "count", "total", "share", "mean", "delay")
        for use in rank.kernels:
            table.add_row(
                _name(use.name), Text(use.kernel_class), quantity.count(use.count),
                _us(use.total_us), quantity.percent(use.share), _us(use.mean_us),
                _us(use.launch_delay_us),
            )  # fmt: skip
        shown += [table, Text(), *_roofline(rank)]
    return Group(*shown)


def _roofline(rank: RankKernels) -> list[RenderableType]:
    """The kernels whose work is known by the shapes of their operators."""
    placed = [(use.name, use.roofline) for use in rank.kernels if use.roofline is not None]
    if not placed:
        return []
    table = _table("kernel", "FLOP/byte", "arithmetic", "memory", "bound", "attained")
    for name, place in placed:
        intensity, percent = place.intensity_flops_per_byte, place.attained_percent
        table.add_row(
            _name(name), "–" if intensity is None else f"{intensity:.3g}",
            _rate(place.flops_per_second, "FLOP/s"), _rate(place.bytes_per_second, "B/s"),
            " ".join(part for part in (place.arithmetic, place.bound) if part) or "–",
            "–" if percent is None else quantity.percent(percent / 100),
        )  # fmt: skip
    note = (
        "FLOPs and least traffic by the shapes of operators; attained: of what the device's "
        "roofline allows"
    )
    return [Text("under the roofline"), table, Text(note, style="dim"), Text()]


def _rate(value: float | None, unit: str) -> str:
    return "–" if value is None else quantity.scaled(value, unit)


def overlap_view(ranks: Sequence[RankOverlap]) -> RenderableType:
    """Communication hidden and exposed, per GPU."""
    table = _table("rank", "window", "compute", "comm", "hidden", "exposed", "share", "copies",
                   "hidden")  # fmt: skip
    for rank in ranks:
        hidden = "–" if rank.overlap_ratio is None else quantity.percent(rank.overlap_ratio)
        table.add_row(
            _rank(rank), _us(rank.window_us), _us(rank.compute_us), _us(rank.communication_us),
            hidden, _us(rank.exposed_us), quantity.percent(rank.exposed_share), _us(rank.copy_us),
            _share(rank.copy_overlap_us, rank.copy_us),
        )  # fmt: skip
    return table


def communication_view(ranks: Sequence[RankCommunication]) -> RenderableType:
    """Collectives per GPU."""
    shown: list[RenderableType] = []
    for rank in ranks:
        if not rank.calls:
            shown.append(_title(rank, "no communication"))
            continue
        shown.append(_title(rank, f"communication {_us(rank.communication_us)}, exposed "
                                  f"{_us(rank.exposed_us)}"))  # fmt: skip
        table = _table("collective", "group", "size", "count", "total", "median", "bus bandwidth",
                       "of link")  # fmt: skip
        for use in rank.collectives:
            group = f"{use.group or ''} ×{use.group_size}" if use.group_size else use.group or "–"
            table.add_row(
                _name(use.kind), _name(group),
                quantity.memory(use.bytes) if use.bytes else "–", quantity.count(use.count),
                _us(use.total_us), _us(use.median_us),
                quantity.scaled(use.bus_bytes_per_second, "B/s")
                if use.bus_bytes_per_second else "–",
                quantity.percent(use.link_share) if use.link_share is not None else "–",
            )  # fmt: skip
        shown += [table, Text()]
    return Group(*shown)


def launch_view(ranks: Sequence[RankLaunches]) -> RenderableType:
    """How each GPU was fed."""
    table = _table("rank", "bound", "host wait", "delay", "queue", "short", "launches", "graphs",
                   "in graphs")  # fmt: skip
    for rank in ranks:
        delay = rank.delay_us.get("median")
        deepest = max((queue.mean_depth for queue in rank.queues), default=0.0)
        table.add_row(
            _rank(rank), "yes" if rank.launch_bound else "no",
            quantity.percent(rank.host_wait_share), _us(delay), f"{deepest:.1f}",
            quantity.percent(rank.kernels_under_5us_share), quantity.count(rank.launch_calls),
            quantity.count(rank.graph_launches), quantity.percent(rank.graph_time_share),
        )  # fmt: skip
    note = (
        "bound: is the GPU launch-bound? delay: median from launch to start; "
        "queue: mean depth of the deepest stream; short: kernels under 5 µs; in graphs: of GPU time"
    )
    return Group(table, Text(note, style="dim"))


def sync_view(ranks: Sequence[RankSync]) -> RenderableType:
    """Waits of the host, per rank."""
    shown: list[RenderableType] = []
    for rank in ranks:
        shown.append(_title(rank, f"{rank.count} waits block the host for {_us(rank.host_us)}; "
                                  f"GPU idle around them {_us(rank.gpu_gap_us)}"))  # fmt: skip
        table = _table("call", "operator", "line", "count", "host", "longest", "GPU gap")
        for point in rank.points:
            table.add_row(
                _name(point.call), _name(point.operator), _name(point.line),
                quantity.count(point.count), _us(point.host_us), _us(point.longest_us),
                _us(point.gpu_gap_us),
            )  # fmt: skip
        shown += [table, Text()] if rank.points else [Text()]
    return Group(*shown)


def steps_view(ranks: Sequence[RankSteps]) -> RenderableType:
    """Steps and their phases, per rank."""
    shown: list[RenderableType] = []
    for rank in ranks:
        if not rank.steps:
            shown.append(_title(rank, "no ProfilerStep; call profiler.step() once per step"))
            continue
        spread = f" ± {_us(rank.spread_us)}" if rank.spread_us is not None else ""
        shown.append(_title(rank, f"{_us(rank.mean_us)}{spread} per step"))
        used = [phase for phase in PHASES if any(step.phases_us[phase] for step in rank.steps)]
        spoken = any(step.communication_exposed_us for step in rank.steps)
        table = _table("step", "length", *used, "GPU busy", *(["exposed"] if spoken else []), "")
        for step in rank.steps:
            remark = "outlier" if step.outlier else "" if step.whole else "no end"
            table.add_row(
                str(step.number), _us(step.length_us),
                *(_us(step.phases_us[phase]) for phase in used), _us(step.gpu_busy_us),
                *([_us(step.communication_exposed_us)] if spoken else []), remark,
            )  # fmt: skip
        shown += [table, Text()]
    return Group(*shown)


def operators_view(ranks: Sequence[RankOperators]) -> RenderableType:
    """Operators per rank."""
    shown: list[RenderableType] = []
    for rank in ranks:
        shown.append(_title(rank, f"{quantity.count(rank.count)} operator calls"))
        extra = [] if rank.by == "name" else [rank.by]
        table = _table("operator", *extra, "count", "host self", "host total", "GPU self",
                       "GPU total", "rate")  # fmt: skip
        for use in rank.operators:
            place = {"shape": _dims(use.shapes), "line": use.line}.get(rank.by)
            rate = use.flops_per_second
            table.add_row(
                _name(use.name), *([_name(place)] if extra else []), quantity.count(use.count),
                _us(use.host_self_us), _us(use.host_total_us), _us(use.gpu_self_us),
                _us(use.gpu_total_us), quantity.scaled(rate, "FLOP/s") if rate else "–",
            )  # fmt: skip
        shown += [table, Text()]
    return Group(*shown)


def memory_view(ranks: Sequence[RankMemory]) -> RenderableType:
    """Memory per rank and device."""
    shown: list[RenderableType] = []
    for rank in ranks:
        if rank.note is not None:
            shown.append(_title(rank, rank.note))
        for device in rank.devices:
            facts = [f"{device.device}: {quantity.count(device.events)} events"]
            if device.peak_bytes is not None:
                facts.append(f"peak {quantity.memory(device.peak_bytes)}")
            if device.fragmentation is not None:
                facts.append(f"{quantity.percent(device.fragmentation)} of reserved unused then")
            shown.append(_title(rank, ", ".join(facts)))
            shown += [_growth(device), *_held(device), Text()]
    return Group(*shown)


def _growth(device: DeviceMemory) -> Text:
    grows = device.growth.verdict == "grows"
    start = " (counted from the start of the trace)" if device.start_bytes is None else ""
    return Text(f"memory {device.growth.sentence}{start}", style="yellow" if grows else "dim")


def _held(device: DeviceMemory) -> list[RenderableType]:
    """Who holds the peak and, where memory grows, the level of each step and what is kept."""
    parts: list[RenderableType] = []
    if device.growth.verdict == "grows":
        levels = _table("step", "lowest", "highest", "at its end")
        for step in device.growth.steps:
            figures = (step.lowest_bytes, step.highest_bytes, step.end_bytes)
            levels.add_row(str(step.number), *(quantity.memory(size) for size in figures))
        parts += [levels, _holders("kept by", device.growth.kept)]
    if device.held_by_phase:
        phases = (f"{name} {quantity.memory(size)}" for name, size in device.held_by_phase.items())
        parts.append(Text("allocated in " + ", ".join(phases), style="dim"))
    if device.holders or device.before_bytes:
        parts.append(_holders("held at the peak by", device.holders, device.before_bytes))
    return parts


def _holders(
    heading: str, holders: Sequence[MemoryHolder], before: int | None = None
) -> FittedTable:
    table = _table(heading, "line", "phase", "allocations", "bytes")
    if before:
        table.add_row("(before the trace)", "–", "–", "–", quantity.memory(before))
    for one in holders:
        table.add_row(_name(one.operator), _name(one.line), Text(one.phase),
                      quantity.count(one.allocations), quantity.memory(one.bytes))  # fmt: skip
    return table


def _table(*headings: str) -> FittedTable:
    table = FittedTable(box=None, header_style="dim", pad_edge=False, padding=(0, 2, 0, 0))
    left = {"rank", "host call", "line", "next on the GPU", "kernel", "collective",
            "group", "call", "operator", "shape", "held at the peak by", "kept by"}  # fmt: skip
    for number, heading in enumerate(headings):
        names = heading in left and not (heading == "kernel" and number > 0)
        # Figures keep their width; names give way, each cell cut with an ellipsis.
        width = 8 if heading == "rank" else None
        table.add_column(
            heading, justify="left" if names else "right", no_wrap=not names, min_width=width
        )
    return table


def _rank(rank: RankSummary | RankOverlap | RankLaunches) -> Text:
    return _name(_who(rank.file, rank.rank, rank.device))


def _who(file: str, rank: int | None, device: int | None) -> str:
    name = os.path.basename(file) if rank is None else f"rank {rank}"
    return name if not device or rank == device else f"{name} gpu {device}"


def _title(rank: object, text: str) -> Text:
    who = _who(
        getattr(rank, "file", ""), getattr(rank, "rank", None), getattr(rank, "device", None)
    )
    return Text.assemble((who, "bold"), f": {text}")


def _pairs(title: str, values: Iterable[tuple[str, float]]) -> Text:
    shown = ", ".join(f"{name} {_us(value)}" for name, value in values if value > 0)
    return Text(f"{title}: {shown or 'nothing'}")


def _name(text: str | None) -> Text:
    return Text("–" if text is None else " ".join(text.split()), no_wrap=True, overflow="ellipsis")


def _dims(shapes: str | None) -> str | None:
    """`[[[8,4],[]],["float","Scalar"]]` as `8×4`."""
    if shapes is None:
        return None
    dims = msgspec.json.decode(shapes)[0]
    return ", ".join("×".join(map(str, dim)) for dim in dims if dim) or "scalars"


def _us(value: float | None) -> str:
    return "–" if value is None else quantity.seconds(value * 1e-6)


def _share(part: float, whole: float) -> str:
    return quantity.percent(part / whole) if whole > 0 else "–"


def _warnings(found: Iterable[tuple[str, list[str]]]) -> list[RenderableType]:
    lines = dict.fromkeys(
        f"{os.path.basename(file)}: {warning}" for file, warnings in found for warning in warnings
    )
    return [Text(line, style="yellow") for line in lines]
