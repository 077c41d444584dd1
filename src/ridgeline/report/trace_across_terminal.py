"""Terminal views of what spans traces: verdict, critical path, stragglers, comparison."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from ridgeline import quantity
from ridgeline.records.trace_finding import TraceFinding
from ridgeline.report.fitted_table import FittedTable
from ridgeline.trace.compare import TraceComparison
from ridgeline.trace.critical_path import CriticalPath
from ridgeline.trace.flame import FlameNode
from ridgeline.trace.kernel_names import short_name
from ridgeline.trace.snapshot_memory import DeviceMemory
from ridgeline.trace.stragglers import Stragglers

ROWS = 12


def verdict_view(findings: Sequence[TraceFinding]) -> RenderableType:
    """What bounds the run, then everything else that was found."""
    if not findings:
        return Text("Nothing stands out: no cause takes a share of the window worth a word.")
    parts: list[RenderableType] = []
    for number, finding in enumerate(findings):
        head = Text.assemble(
            (finding.cause, "bold yellow" if number == 0 else "bold"),
            f"  {quantity.percent(finding.share)} of the window"
            f", worth up to {quantity.seconds(finding.worth_us * 1e-6)}"
            f", confidence {finding.confidence:.2f}",
        )
        parts += [head, Text("  " + finding.summary), Text("  → " + finding.cure, style="green")]
        if finding.where:
            parts.append(Text("  at " + "; ".join(finding.where[:3]), style="dim"))
        parts.append(Text())
    return Group(*parts[:-1])


def critical_path_view(path: CriticalPath) -> RenderableType:
    """Shares by class and the longest names."""
    parts: list[RenderableType] = [_warnings(path.warnings)]
    if not path.window_us:
        return Group(*parts)
    parts.append(Text(f"Window {quantity.seconds(path.window_us * 1e-6)}", style="bold"))
    table = _table("On the path", "time", "share", "pieces")
    for part in path.classes:
        table.add_row(
            part.name, _us(part.us), quantity.percent(part.share), quantity.count(part.pieces)
        )
    parts.append(table)
    names = _table("Longest", "time", "share", "pieces")
    for part in path.names[:ROWS]:
        names.add_row(
            f"{part.kind}: {short_name(part.name)}", _us(part.us), quantity.percent(part.share),
            quantity.count(part.pieces),
        )  # fmt: skip
    parts.append(names)
    if path.what_if is not None:
        shorter = ", ".join(f"{name} −{by:g} %" for name, by in path.what_if.shortened.items())
        parts.append(
            Text(
                f"With {shorter}: {_us(path.what_if.window_us)}, {_us(path.what_if.saved_us)} "
                f"less, {quantity.ratio(path.what_if.speedup)}",
                style="bold green",
            )
        )
    return Group(*parts)


def stragglers_view(found: Stragglers) -> RenderableType:
    """Who comes last, and what it costs the others."""
    parts: list[RenderableType] = [_warnings(found.warnings)]
    if not found.matched:
        parts.append(Text("No collective that two of the ranks took part in."))
        return Group(*parts)
    waited = found.waited_us
    parts.append(
        Text(
            f"{found.matched} collectives: transfers need {_us(found.transfer_us)}, ranks waited "
            f"{_us(waited)} for the last to arrive"
        )
    )
    table = _table("Rank", "last in", "others waited", "waited itself", "communication", "clock")
    for row in found.ranks[:ROWS]:
        table.add_row(
            str(row.rank), str(row.last_arrivals), _us(row.caused_wait_us), _us(row.skew_wait_us),
            _us(row.communication_us),
            f"{row.clock_offset_us:+.0f} µs" if row.clock_offset_us else "",
        )  # fmt: skip
    parts.append(table)
    largest = sorted(found.collectives, key=lambda row: -row.skew_us)[:ROWS]
    each = _table("Collective", "skew", "transfer", "last", "bytes", "bus")
    for one in largest:
        bus = one.bus_bytes_per_second
        each.add_row(
            one.name, _us(one.skew_us), _us(one.transfer_us), f"rank {one.last_rank}",
            "" if one.bytes is None else quantity.memory(one.bytes),
            "" if bus is None else quantity.scaled(bus, "B/s"),
        )  # fmt: skip
    parts.append(each)
    return Group(*parts)


def comparison_view(found: TraceComparison) -> RenderableType:
    """The verdict, then what changed most."""
    parts: list[RenderableType] = [_warnings(found.warnings), Text(found.summary, style="bold")]
    table = _table(found.by.capitalize(), "", "calls A", "calls B", "mean A", "mean B", "change")
    for row in found.rows[:ROWS]:
        table.add_row(
            short_name(row.name), row.status, str(row.calls_a), str(row.calls_b),
            _us(row.mean_a_us) if row.calls_a else "", _us(row.mean_b_us) if row.calls_b else "",
            _us(row.change_us),
        )  # fmt: skip
    parts.append(table)
    return Group(*parts)


def tree_view(roots: Sequence[FlameNode], top: int) -> RenderableType:
    """The nesting, widest first; branches below a hundredth are folded."""
    table = _table("Where", "host", "own", "GPU", "calls")
    whole = max(sum(max(node.host_us, node.gpu_us) for node in roots), 1e-9)

    def add(node: FlameNode, depth: int) -> None:
        if depth > 12 or table.row_count >= top or max(node.host_us, node.gpu_us) < 0.01 * whole:
            return
        table.add_row(
            "  " * depth + short_name(node.name), _us(node.host_us), _us(node.own_us),
            _us(node.gpu_us), str(node.calls),
        )  # fmt: skip
        for child in node.children:
            add(child, depth + 1)

    for root in roots:
        add(root, 0)
    return table


def snapshot_view(devices: Sequence[DeviceMemory]) -> RenderableType:
    """A memory snapshot: totals, who held the peak, what only grows."""
    parts: list[RenderableType] = []
    for memory in devices:
        parts.append(_warnings(memory.warnings))
        parts.append(
            Text(
                f"GPU {memory.device}: peak {quantity.memory(memory.peak_bytes)}, now "
                f"{quantity.memory(memory.active_bytes)} of "
                f"{quantity.memory(memory.reserved_bytes)} reserved, "
                f"{quantity.percent(memory.fragmentation)} lost to fragmentation",
                style="bold",
            )
        )
        parts.append(
            Text(f"memory {memory.growth_sentence}", style="yellow" if memory.growing else "dim")
        )
        table = _table("Held at the peak", "bytes", "blocks")
        for entry in memory.peak_by_site[:ROWS]:
            table.add_row(entry.site, quantity.memory(entry.bytes), str(entry.blocks))
        parts.append(table)
        if memory.growing:
            kept = _table("Kept: allocated in the history, not freed", "bytes", "blocks")
            for entry in memory.growth_by_site[:ROWS]:
                kept.add_row(entry.site, quantity.memory(entry.bytes), str(entry.blocks))
            parts.append(kept)
    return Group(*parts)


def _warnings(warnings: Sequence[str]) -> RenderableType:
    return Text("\n".join(warnings), style="yellow") if warnings else Text("", end="")


def _table(first: str, *others: str) -> FittedTable:
    table = FittedTable(box=None, pad_edge=False, header_style="dim", expand=True)
    table.add_column(first, overflow="ellipsis", no_wrap=True, ratio=1)
    for name in others:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _us(value: float) -> str:
    return quantity.seconds(value * 1e-6)
