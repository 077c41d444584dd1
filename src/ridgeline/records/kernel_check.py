"""What `ridgeline kernels check` found out about the Triton kernels that a file launches."""

from __future__ import annotations

import msgspec

from ridgeline.records.kernel_occupancy import KernelOccupancy


class KernelFinding(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One defect of a kernel, or one waste, with its evidence."""

    cause: str
    """Stable name in kebab case, e.g. `out-of-bounds`."""
    kernel: str
    summary: str
    """One sentence with its most telling number."""
    evidence: dict[str, float | int | str]
    """The numbers behind it; units live in the keys."""
    where: str
    """The line of the kernel, `file:line`."""
    cure: str
    """What to do, in one sentence."""


class LaunchArgument(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One argument of a launch, as much of it as a compiler must know."""

    name: str
    kind: str
    """`tensor`, `number`, `constant`, or `other`, which cannot be compiled ahead of time."""
    dtype: str = ""
    """What torch calls the dtype of a tensor; empty for the rest."""
    value: int | float | bool | str | None = None
    aligned: bool = False
    """Whether a tensor's address is a multiple of 16 bytes."""


class KernelLaunch(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One launch under the interpreter, and the memory that it touched."""

    kernel: str
    file: str
    line: int
    programs: int
    arguments: list[LaunchArgument]
    options: dict[str, int | bool]
    """Options of the compiler: `num_warps`, `num_stages`."""
    loaded_bytes: int
    """Bytes of all loads, each as often as it was read."""
    stored_bytes: int
    minimum_bytes: int
    """Bytes read at least once, plus bytes written at least once."""
    sector_efficiency: float
    """Bytes that warps asked for over the 32-byte sectors that hold them, 0 … 1."""


class CompiledKernel(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One kernel's machine code for one architecture."""

    kernel: str
    file: str
    target: str
    error: str = ""
    """Why it does not compile; empty where it does."""
    threads: int = 0
    """Threads of a block."""
    registers: int = 0
    stack_bytes: int = 0
    spill_instructions: int = 0
    """Loads and stores of local memory; on AMD, registers that were spilled."""
    shared_bytes: int = 0
    instructions: dict[str, int] = {}
    """How many of the telling instructions there are, by name."""
    occupancy: KernelOccupancy | None = None


class KernelCheck(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole answer of a check."""

    file: str
    triton: str
    launches: list[KernelLaunch]
    compiled: list[CompiledKernel]
    findings: list[KernelFinding]
