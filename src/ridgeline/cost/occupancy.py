"""The occupancy of a kernel is the share of a multiprocessor's warp slots that its blocks fill.

Blocks per multiprocessor are the least of four counts (with w warps per block):

    warps       warps that fit ÷ w
    blocks      the architecture's limit
    registers   ⌊(registers of a partition ÷ round(registers · lanes)) · partitions ÷ w⌋
    shared      shared memory ÷ round(static + dynamic + reserve)

as NVIDIA's `cuda_occupancy.h` has it, which `tests/cost/test_occupancy.py` compiles and asks. AMD's
compute units follow the same counts with waves, VGPRs and LDS (LLVM, `AMDGPUBaseInfo.cpp`).

A high occupancy hides latency and is no aim in itself: attention at 12.5 % can be at the roof.
"""

from __future__ import annotations

from collections.abc import Iterator

from ridgeline.errors import InputError
from ridgeline.hardware.processors import ProcessorLimits
from ridgeline.records.kernel_occupancy import KernelOccupancy, OccupancyChange


def occupancy(
    limits: ProcessorLimits, *, threads: int, registers: int, shared_bytes: int
) -> KernelOccupancy:
    """Resident blocks of a kernel, what limits them, and what would raise them.

    Args:
        limits: The architecture's, from `hardware.processors`.
        threads: Threads per block.
        registers: Registers per thread (AMD: VGPRs), as the compiler reports them.
        shared_bytes: Shared memory per block, static and dynamic together.

    Raises:
        InputError: No kernel of this architecture can have these numbers.

    >>> from ridgeline.hardware.processors import processor
    >>> found = occupancy(processor("sm_90"), threads=256, registers=40, shared_bytes=0)
    >>> found.occupancy, found.limiters
    (0.75, ['registers'])
    """
    _check(limits, threads, registers, shared_bytes)
    allowed = blocks_by_limit(limits, threads, registers, shared_bytes)
    blocks = min(allowed.values())
    share = _share(limits, threads, registers, shared_bytes)
    limiters = [name for name, most in allowed.items() if most == blocks] if share < 1 else []
    return KernelOccupancy(
        target=limits.target,
        threads_per_block=threads,
        registers_per_thread=registers,
        shared_bytes_per_block=shared_bytes,
        blocks=blocks,
        warps=blocks * _up(threads, limits.threads_per_warp),
        max_warps=limits.warps,
        occupancy=share,
        limits=allowed,
        limiters=limiters,
        changes=list(_changes(limits, threads, registers, shared_bytes)) if share < 1 else [],
    )


def blocks_by_limit(
    limits: ProcessorLimits, threads: int, registers: int, shared_bytes: int
) -> dict[str, int]:
    """The blocks that each resource allows by itself, at most as many as there are warp slots."""
    warps = _up(threads, limits.threads_per_warp)
    slots = limits.blocks
    if warps == 1 and limits.single_warp_blocks is not None:
        slots = limits.single_warp_blocks
    return {
        "warps": limits.warps // warps,
        "blocks": slots,
        "registers": _blocks_by_registers(limits, warps, registers),
        "shared": _blocks_by_shared(limits, shared_bytes),
    }


def _blocks_by_registers(limits: ProcessorLimits, warps: int, registers: int) -> int:
    if not registers:
        return limits.warps
    of_a_warp = _up(registers * limits.threads_per_warp, limits.registers_unit)
    of_a_warp *= limits.registers_unit
    spread = _up(warps, limits.register_partitions) * limits.register_partitions
    if of_a_warp * spread > limits.registers:
        return 0
    in_a_partition = limits.registers // limits.register_partitions // of_a_warp
    return min(in_a_partition * limits.register_partitions // warps, limits.warps)


def _blocks_by_shared(limits: ProcessorLimits, shared_bytes: int) -> int:
    of_a_block = shared_bytes + limits.reserved_shared_bytes
    of_a_block = _up(of_a_block, limits.shared_unit_bytes) * limits.shared_unit_bytes
    if of_a_block > limits.shared_bytes_per_block + limits.reserved_shared_bytes:
        return 0
    return min(limits.shared_bytes // of_a_block, limits.warps) if of_a_block else limits.warps


def _share(limits: ProcessorLimits, threads: int, registers: int, shared_bytes: int) -> float:
    blocks = min(blocks_by_limit(limits, threads, registers, shared_bytes).values())
    return blocks * _up(threads, limits.threads_per_warp) / limits.warps


def _changes(
    limits: ProcessorLimits, threads: int, registers: int, shared_bytes: int
) -> Iterator[OccupancyChange]:
    """The nearest change of each kind; of registers and shared memory together if none helps."""
    now = _share(limits, threads, registers, shared_bytes)
    fewer = next(
        (one for one in range(registers - 1, 0, -1)
         if _share(limits, threads, one, shared_bytes) > now),
        None,
    )  # fmt: skip
    if fewer is not None:
        then = _share(limits, threads, fewer, shared_bytes)
        yield OccupancyChange(registers_per_thread=fewer, occupancy=then)
    less = _less_shared(limits, threads, registers, shared_bytes)
    if less is not None:
        then = _share(limits, threads, registers, less)
        yield OccupancyChange(shared_bytes_per_block=less, occupancy=then)
    if fewer is None and less is None:
        both = _less_of_both(limits, threads, registers, shared_bytes)
        if both is not None:
            yield both
    sizes = range(limits.threads_per_warp, limits.threads_per_block + 1, limits.threads_per_warp)
    better = [one for one in sizes if _share(limits, one, registers, shared_bytes) > now]
    if better:
        nearest = min(better, key=lambda one: (abs(one - threads), one))
        then = _share(limits, nearest, registers, shared_bytes)
        yield OccupancyChange(threads_per_block=nearest, occupancy=then)


def _shared_for(limits: ProcessorLimits, blocks: int) -> int:
    """The most bytes per block with which so many blocks fit; negative: none."""
    unit = limits.shared_unit_bytes
    room = limits.shared_bytes // blocks // unit * unit - limits.reserved_shared_bytes
    return min(room, limits.shared_bytes_per_block)


def _less_shared(
    limits: ProcessorLimits, threads: int, registers: int, shared_bytes: int
) -> int | None:
    now = _share(limits, threads, registers, shared_bytes)
    blocks = min(blocks_by_limit(limits, threads, registers, shared_bytes).values())
    room = _shared_for(limits, blocks + 1)
    if 0 <= room < shared_bytes and _share(limits, threads, registers, room) > now:
        return room
    return None


def _less_of_both(
    limits: ProcessorLimits, threads: int, registers: int, shared_bytes: int
) -> OccupancyChange | None:
    now = _share(limits, threads, registers, shared_bytes)
    blocks = min(blocks_by_limit(limits, threads, registers, shared_bytes).values())
    room = _shared_for(limits, blocks + 1)
    if not 0 <= room < shared_bytes:
        return None
    for fewer in range(registers - 1, 0, -1):
        then = _share(limits, threads, fewer, room)
        if then > now:
            return OccupancyChange(
                registers_per_thread=fewer, shared_bytes_per_block=room, occupancy=then
            )
    return None


def _up(number: int, unit: int) -> int:
    """A quotient, rounded up."""
    return -(-number // unit)


def _check(limits: ProcessorLimits, threads: int, registers: int, shared_bytes: int) -> None:
    for option, given, least, most in (
        ("--threads", threads, 1, limits.threads_per_block),
        ("--registers", registers, 0, limits.registers_per_thread),
    ):
        if not least <= given <= most:
            raise InputError(
                f"{option} {given}: {limits.target} takes {least} to {most}; "
                "give what the compiler reports"
            )
    if shared_bytes < 0:
        raise InputError(f"--shared {shared_bytes}: bytes per block cannot be negative")
