"""The command `ridgeline kernels check` judges Triton kernels without a GPU."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from ridgeline.cli.show import Html, Json

if TYPE_CHECKING:
    from ridgeline.records.kernel_check import CompiledKernel, KernelFinding, KernelLaunch


def kernels_check(
    target: Annotated[
        str,
        typer.Argument(metavar="FILE.py[:KERNEL]|NAME", help="A file with an example(), or ours."),
    ],
    arch: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Architecture to compile for, repeatable; none: six."),
    ] = None,
    large: Annotated[
        bool,
        typer.Option("--large", help="Tensors may have 2^31 elements: offsets must have 64 bits."),
    ] = False,
    html: Html = None,
    json: Json = False,
) -> None:
    """Bounds, races, unwritten outputs, bytes, sectors, registers, spills: exit 3 with findings."""
    import msgspec

    from ridgeline.cli.show import show_answer
    from ridgeline.errors import Regression
    from ridgeline.hardware.processors import processor
    from ridgeline.kernels.check.conduct import TARGETS, check
    from ridgeline.report.views.kernel_check import check_document

    targets = [processor(one).target for one in arch or TARGETS]
    seen = check(target, targets)
    compiled = [
        _with_roofline(_with_occupancy(one), seen.launches[one.launch]) for one in seen.compiled
    ]
    findings = [*seen.findings, *(found for one in compiled for found in _of_code(one))]
    if large:
        findings += _too_narrow(seen.launches)
    answer = msgspec.structs.replace(seen, compiled=compiled, findings=findings)
    show_answer(answer, check_document(answer), json=json, html=html)
    if findings:
        count = f"{len(findings)} finding{'s' if len(findings) > 1 else ''}"
        raise Regression(f"{target}: {count}; see each one's cure")


def _with_occupancy(one: CompiledKernel) -> CompiledKernel:
    import msgspec

    from ridgeline.cost.occupancy import occupancy
    from ridgeline.hardware.processors import processor

    if one.error:
        return one
    limits = processor(one.target)
    registers = min(one.registers, limits.registers_per_thread)
    fits = occupancy(
        limits, threads=one.threads, registers=registers, shared_bytes=one.shared_bytes
    )
    return msgspec.structs.replace(one, occupancy=fits)


def _with_roofline(one: CompiledKernel, launch: KernelLaunch) -> CompiledKernel:
    import msgspec

    from ridgeline.cost.kernel_roofline import launch_roofline

    counted = launch_roofline(
        one.target,
        matrix_flops=launch.matrix_flops,
        matrix_dtype=launch.matrix_dtype,
        vector_flops=launch.vector_flops,
        least_bytes=launch.minimum_bytes,
    )
    return msgspec.structs.replace(one, roofline=counted)


def _too_narrow(launches: Sequence[KernelLaunch]) -> list[KernelFinding]:
    """Kernels whose offsets wrap in large tensors, each once."""
    from ridgeline.records.kernel_check import KernelFinding

    wrapping: dict[tuple[str, str, int], set[str]] = {}
    for one in launches:
        wrapping.setdefault((one.kernel, one.file, one.line), set()).update(one.narrow_offsets)
    return [
        KernelFinding(
            cause="narrow-offset",
            kernel=kernel,
            summary=f"offsets into {', '.join(sorted(names))} are computed in 32 bits and wrap at "
            "2^31 elements",
            evidence={"narrow": ", ".join(sorted(names))},
            where=f"{file}:{line}",
            cure="widen the number of the row or program before it is multiplied: .to(tl.int64)",
        )
        for (kernel, file, line), names in wrapping.items()
        if names
    ]


def _of_code(one: CompiledKernel) -> Iterator[KernelFinding]:
    from ridgeline.records.kernel_check import KernelFinding

    def finding(cause: str, summary: str, cure: str, **evidence: float | str) -> KernelFinding:
        return KernelFinding(
            cause=cause,
            kernel=one.kernel,
            summary=f"{one.target}: {summary}",
            evidence={"target": one.target, **evidence},
            where=one.file,
            cure=cure,
        )

    if one.error:
        yield finding("does-not-compile", one.error, "change what the compiler names")
        return
    if one.spill_instructions or one.stack_bytes:
        count, stack = one.spill_instructions, one.stack_bytes
        yield finding(
            "spills",
            f"{count} spills, {stack} bytes of stack",
            "take smaller tiles or more warps, and index no local array by a variable",
            spills=count,
            stack_bytes=stack,
        )
    if one.occupancy is not None and not one.occupancy.blocks:
        yield finding(
            "does-not-fit",
            f"no block fits: {' and '.join(one.occupancy.limiters)}",
            "take smaller tiles or fewer stages",
            shared_bytes=one.shared_bytes,
            registers=one.registers,
        )
