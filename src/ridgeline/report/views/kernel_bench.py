"""What `ridgeline kernels bench` shows: each kernel, each way, and ours against the goals."""

from __future__ import annotations

from ridgeline import quantity
from ridgeline.records.kernel_bench import KernelBench, KernelTiming
from ridgeline.report import document as doc


def bench_document(found: KernelBench) -> doc.ReportDocument:
    """One line a way; goals that are missed are marked."""
    copied = quantity.scaled(found.copy_bytes_per_second, "B/s")
    title = f"{found.device}, torch {found.torch}; a copy moves {copied}"
    columns = (
        doc.name("kernel"), doc.words("way"), *doc.figures("µs", "rate"), doc.words("ours of it"),
    )  # fmt: skip
    table = doc.DataTable(columns, [timing_cells(one) for one in found.timings])
    missed = sum(bool(one.missed) for one in found.timings)
    closing = f"{missed} of ours miss a goal" if missed else "no goal is missed"
    return doc.ReportDocument("Kernels", [doc.Paragraph(title), table, doc.Paragraph(closing)])


def timing_cells(one: KernelTiming) -> tuple[doc.Cell, ...]:
    """The cells of one line."""
    if one.seconds is None:
        return one.kernel, one.way, None, None, one.error
    rate = ""
    if one.flops_per_second:
        rate = quantity.scaled(one.flops_per_second, "FLOP/s")
    elif one.bytes_per_second:
        rate = quantity.scaled(one.bytes_per_second, "B/s")
    ratios = ", ".join(
        f"{ratio:.2f} × {name}" + (f" (goal {one.goals[name]:g})" if name in one.missed else "")
        for name, ratio in one.ratios.items()
    )
    return one.kernel, one.way, f"{one.seconds * 1e6:,.1f}", rate, ratios
