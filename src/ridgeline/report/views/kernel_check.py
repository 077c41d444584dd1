"""What `ridgeline kernels check` shows: findings, launches, machine code by architecture."""

from __future__ import annotations

from ridgeline import quantity
from ridgeline.records.kernel_check import CompiledKernel, KernelCheck
from ridgeline.report import document as doc
from ridgeline.report.views.kernel_occupancy import LIMITS


def check_document(found: KernelCheck) -> doc.ReportDocument:
    """Findings first, each with its line and its cure."""
    title = f"{len(found.findings)} findings" if found.findings else "No findings"
    blocks: list[doc.Block] = [doc.Paragraph(f"{title} in {found.file} (Triton {found.triton})")]
    for one in found.findings:
        lines = [f"{one.cause} in {one.kernel}: {one.summary}", f"  at {one.where}; {one.cure}"]
        blocks.append(doc.Lines(lines))
    rows = [
        (
            one.kernel,
            str(one.programs),
            quantity.binary_memory(one.loaded_bytes + one.stored_bytes),
            quantity.binary_memory(one.minimum_bytes),
            f"{one.sector_efficiency:.0%}",
        )
        for one in found.launches
    ]
    heads = doc.figures("programs", "moved", "at least", "of sectors used")
    blocks.append(doc.DataTable((doc.name("kernel"), *heads), rows, title="Launches"))
    columns = doc.figures("registers", "stack", "spills", "shared", "occupancy")
    blocks.append(
        doc.DataTable(
            (doc.name("kernel"), doc.words("target"), *columns, doc.words("limited by"),
             doc.words("instructions")),
            [_row(one) for one in found.compiled],
            title="Machine code",
        )
    )  # fmt: skip
    return doc.ReportDocument("Kernel check", blocks)


def _row(one: CompiledKernel) -> tuple[doc.Cell, ...]:
    if one.error:
        return (one.kernel, one.target, None, None, None, None, None, "", one.error)
    fits, share, limiters = one.occupancy, None, ""
    if fits is not None:
        share = f"{fits.occupancy:.1%}"
        limiters = " and ".join(LIMITS[name] for name in fits.limiters)
    counts = ", ".join(f"{count} {name}" for name, count in one.instructions.items())
    needs = (one.registers, one.stack_bytes, one.spill_instructions, one.shared_bytes)
    return (one.kernel, one.target, *(str(need) for need in needs), share, limiters, counts)
