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
    """`tensor`, `descriptor` (of a tensor, with its block as the value), `number`, `constant`,
    `dtype` (a constant), or `other`, which cannot be compiled ahead of time."""
    dtype: str = ""
    """What torch calls the dtype of a tensor, or Triton a dtype; empty for the rest."""
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
    divergent_warps: float = 0.0
    """The share of warps' requests in which a mask holds for some lanes and not for others."""
    matrix_flops: int = 0
    """Multiplications and additions of `tl.dot`."""
    matrix_dtype: str = ""
    """What `tl.dot` multiplied, as Triton names it; empty without one."""
    vector_flops: int = 0
    """Floating-point results of everything else, one each."""
    narrow_offsets: list[str] = []
    """Arguments through which offsets of 32 bits reach: they wrap at 2^31 elements."""
    configuration: str = ""
    """The constants that an autotuner gave, `BLOCK=64, …`; empty without one."""
    variants: list[dict[str, int | bool]] = []
    """Options of the autotuner's configurations that differ from it for the compiler alone."""


class LaunchRoofline(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One launch under the roof of one device: what bounds it at the sizes of the example."""

    device: str
    """The fastest part of the architecture that we know."""
    intensity_flops_per_byte: float
    """FLOPs over the bytes that must be moved at least."""
    ridge_flops_per_byte: float
    bound: str
    """What decides at this intensity: `memory` or `compute`."""
    least_seconds: float
    """No launch on this device can take less."""


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
    """Loads and stores of a thread's own memory: LDL and STL; on AMD, scratch_load and _store."""
    shared_bytes: int = 0
    instructions: dict[str, int] = {}
    """How many of the telling instructions there are, by name."""
    bank_conflicts: dict[str, int] = {}
    """By access of shared memory (`local_load 64x32 bf16`): cycles that conflicts add to a request
    of one warp, by the layouts that Triton chose; NVIDIA alone."""
    configuration: str = ""
    """The autotuner's constants and options, where there is one."""
    launch: int = 0
    """Which launch of the check it is, counted from 0."""
    occupancy: KernelOccupancy | None = None
    roofline: LaunchRoofline | None = None


class KernelCheck(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole answer of a check."""

    file: str
    triton: str
    launches: list[KernelLaunch]
    compiled: list[CompiledKernel]
    findings: list[KernelFinding]
    compared: int
    """Results that `example()` returned beside what is expected of them."""
