"""What `ridgeline kernels check` shows: findings, launches, machine code by architecture."""

from __future__ import annotations

from ridgeline import quantity
from ridgeline.records.kernel_check import CompiledKernel, KernelCheck
from ridgeline.report import document as doc
from ridgeline.report.views.kernel_occupancy import LIMITS, change_in_words


def check_document(found: KernelCheck) -> doc.ReportDocument:
    """Findings first, each with its line and its cure."""
    count = len(found.findings)
    title = "No findings" if not count else f"{count} finding{'s' if count > 1 else ''}"
    compared = (
        f"{found.compared} result{'s' if found.compared > 1 else ''} compared"
        if found.compared
        else "no result was compared, as example() returns no pairs of (found, expected)"
    )
    told = f"{title} in {found.file} (Triton {found.triton}); {compared}"
    blocks: list[doc.Block] = [doc.Paragraph(told)]
    for one in found.findings:
        lines = [f"{one.cause} in {one.kernel}: {one.summary}", f"  at {one.where}; {one.cure}"]
        blocks.append(doc.Lines(lines))
    blocks.append(_launches(found))
    columns = doc.figures("registers", "stack", "spills", "shared", "occupancy")
    blocks.append(
        doc.DataTable(
            (doc.name("kernel"), doc.words("target"), *columns, doc.words("limited by"),
             doc.words("would be raised by")),
            [_row(one) for one in found.compiled],
            title="Machine code",
        )
    )  # fmt: skip
    blocks.append(
        doc.DataTable(
            (doc.name("kernel"), doc.words("target"), *doc.figures("bank conflicts"),
             doc.words("instructions")),
            [_instructions(one) for one in found.compiled if not one.error],
            title="Instructions; cycles that conflicts add to a warp's request of shared memory",
        )
    )  # fmt: skip
    blocks.append(_roofs(found))
    return doc.ReportDocument("Kernel check", blocks)


def _launches(found: KernelCheck) -> doc.DataTable:
    rows = [
        (
            one.kernel,
            str(one.programs),
            quantity.binary_memory(one.loaded_bytes + one.stored_bytes),
            quantity.binary_memory(one.minimum_bytes),
            f"{one.sector_efficiency:.0%}",
            f"{one.divergent_warps:.0%}",
            ", ".join(one.narrow_offsets),
        )
        for one in found.launches
    ]
    heads = doc.figures("programs", "moved", "at least", "of sectors used", "divergent warps")
    wrap = doc.words("wrap at 2^31 elements")
    return doc.DataTable((doc.name("kernel"), *heads, wrap), rows, title="Launches")


def _name(one: CompiledKernel) -> str:
    return f"{one.kernel} ({one.configuration})" if one.configuration else one.kernel


def _row(one: CompiledKernel) -> tuple[doc.Cell, ...]:
    if one.error:
        return (_name(one), one.target, None, None, None, None, None, "", one.error)
    fits, share, limiters, cures = one.occupancy, None, "", ""
    if fits is not None:
        share = f"{fits.occupancy:.1%}"
        limiters = " and ".join(LIMITS[name] for name in fits.limiters)
        cures = "; ".join(change_in_words(change) for change in fits.changes)
    needs = (one.registers, one.stack_bytes, one.spill_instructions, one.shared_bytes)
    return (_name(one), one.target, *(str(need) for need in needs), share, limiters, cures)


def _instructions(one: CompiledKernel) -> tuple[doc.Cell, ...]:
    counts = ", ".join(f"{count} {name}" for name, count in one.instructions.items())
    conflicts = str(max(one.bank_conflicts.values())) if one.bank_conflicts else None
    return (_name(one), one.target, conflicts, counts)


def _roofs(found: KernelCheck) -> doc.DataTable:
    """What bounds each launch on each architecture, at the sizes of the example."""
    rows = [
        (
            _name(one),
            one.roofline.device,
            f"{one.roofline.intensity_flops_per_byte:.3g}",
            f"{one.roofline.ridge_flops_per_byte:.3g}",
            one.roofline.bound,
            quantity.seconds(one.roofline.least_seconds),
        )
        for one in found.compiled
        if one.roofline is not None
    ]
    heads = doc.figures("FLOP/byte", "ridge")
    return doc.DataTable(
        (doc.name("kernel"), doc.words("device"), *heads, doc.words("bound by"),
         *doc.figures("at least")),
        rows,
        title="Roofline of each launch, at the sizes of the example",
    )  # fmt: skip
