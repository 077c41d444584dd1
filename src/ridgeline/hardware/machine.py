"""What this machine is: its CPU with ISA and caches, its memory, and the limits put on us.

On Linux from `/proc` and `/sys` under a root that tests replace; on macOS, which has neither,
from `sysctl`, with less. Containers see the host's CPU but may use only part of it: affinity and
cgroup quotas (v1 and v2) are what a thread count must respect.
"""

from __future__ import annotations

import os
import platform
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import msgspec

from ridgeline.hardware.accelerators import Gpu, find_gpus
from ridgeline.hardware.cgroups import CgroupLimits, cgroup_limits

ISA_FLAGS = {
    "avx2": "avx2",
    "fma": "fma",
    "f16c": "f16c",
    "avx_vnni": "avx_vnni",
    "avx512f": "avx512f",
    "avx512_vnni": "avx512_vnni",
    "avx512_bf16": "avx512_bf16",
    "avx512_fp16": "avx512_fp16",
    "amx_tile": "amx_tile",
    "amx_bf16": "amx_bf16",
    "amx_int8": "amx_int8",
    "amx_fp16": "amx_fp16",
    "asimd": "neon",
    "asimdhp": "fp16",
    "asimddp": "dotprod",
    "bf16": "bf16",
    "i8mm": "i8mm",
    "sve": "sve",
    "sve2": "sve2",
    "sme": "sme",
}
"""The kernel's flag → what people call it; those that change the speed of a matmul."""

ARM_CORES = {
    ("0x41", "0xd0c"): "Arm Neoverse-N1",
    ("0x41", "0xd40"): "Arm Neoverse-V1",
    ("0x41", "0xd42"): "Arm Cortex-A78AE",
    ("0x41", "0xd49"): "Arm Neoverse-N2",
    ("0x41", "0xd4f"): "Arm Neoverse-V2",
    ("0x41", "0xd8e"): "Arm Neoverse-N3",
}
"""Implementer and part, as Arm's Main ID register defines them: Arm kernels print no name."""


class Cache(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One level of cache, all instances of it."""

    level: int
    kind: str
    """`Data`, `Instruction` or `Unified`."""
    size_bytes: int
    """The size of one instance."""
    num_instances: int

    @property
    def total_bytes(self) -> int:
        """The size of all instances together."""
        return self.size_bytes * self.num_instances


class Cpu(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The processor, and how much of it we may use."""

    model: str
    architecture: str
    """The name of the architecture: `x86_64`, `aarch64`, `arm64`."""
    num_sockets: int
    num_physical_cores: int
    num_logical_cores: int
    num_affinity_cores: int
    """Logical cores that this process may be scheduled on."""
    cgroup_cores: float | None
    """Cores' worth of time that the cgroup grants; None: no quota."""
    num_usable_cores: int
    """What a thread count should be: the least of the above."""
    isa: list[str]
    caches: list[Cache]


class Machine(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One machine as this process finds it."""

    os: str
    cpu: Cpu
    memory_bytes: int
    memory_limit_bytes: int | None
    """What the cgroup grants; None: no limit below the machine's memory."""
    gpus: list[Gpu]
    notes: list[str] = []
    """What could not be found out, and why."""


def this_machine(
    root: Path = Path("/"),
    *,
    num_affinity_cores: int | None = None,
    gpus: list[Gpu] | None = None,
) -> Machine:
    """Describe this machine; or, for tests, the one whose `/proc` and `/sys` lie under `root`.

    `gpus`: taken as given instead of asking the vendors' tools, when not None.
    """
    found, notes = find_gpus() if gpus is None else (gpus, [])
    if platform.system() == "Darwin" and root == Path("/"):
        return mac_machine(sysctl, found, notes)
    return linux_machine(root, num_affinity_cores or _affinity(), found, notes)


def linux_machine(root: Path, num_affinity: int, gpus: list[Gpu], notes: list[str]) -> Machine:
    """The machine that `/proc` and `/sys` under `root` describe."""
    limits = cgroup_limits(root)
    memory = _memory_bytes(root)
    limit = limits.memory_bytes
    return Machine(
        os=f"{platform.system()} {platform.release()}",
        cpu=_linux_cpu(root, num_affinity, limits),
        memory_bytes=memory,
        # An unlimited cgroup v1 says 2**63 less a page.
        memory_limit_bytes=None if limit is None or limit >= memory else limit,
        gpus=gpus,
        notes=notes,
    )


def _linux_cpu(root: Path, num_affinity: int, limits: CgroupLimits) -> Cpu:
    blocks = _cpuinfo(root)
    num_logical = max(1, len(blocks))
    packages = {block.get("physical id", "0") for block in blocks} or {"0"}
    cores = {
        (block.get("physical id", "0"), block["core id"]) for block in blocks if "core id" in block
    }
    first = blocks[0] if blocks else {}
    flags = (first.get("flags") or first.get("Features") or "").split()
    granted = num_logical if limits.cores is None else max(1, int(limits.cores))
    return Cpu(
        model=_model(root, blocks),
        architecture=platform.machine(),
        num_sockets=len(packages),
        num_physical_cores=len(cores) or num_logical,
        num_logical_cores=num_logical,
        num_affinity_cores=num_affinity,
        cgroup_cores=limits.cores,
        num_usable_cores=max(1, min(num_logical, num_affinity, granted)),
        isa=[name for flag, name in ISA_FLAGS.items() if flag in flags],
        caches=_caches(root),
    )


def _cpuinfo(root: Path) -> list[dict[str, str]]:
    """The content of `/proc/cpuinfo`: one block per logical processor."""
    blocks: list[dict[str, str]] = []
    for line in _text(root / "proc/cpuinfo").splitlines():
        key, colon, value = line.partition(":")
        if not colon:
            continue
        if key.strip() == "processor":
            blocks.append({})
        if blocks:
            blocks[-1][key.strip()] = value.strip()
    return blocks


def _model(root: Path, blocks: list[dict[str, str]]) -> str:
    first = blocks[0] if blocks else {}
    if "model name" in first:
        return first["model name"]
    board = _text(root / "sys/firmware/devicetree/base/model").strip("\0\n ")
    part = (first.get("CPU implementer", "?"), first.get("CPU part", "?"))
    core = ARM_CORES.get(part, f"{platform.machine()} (implementer {part[0]}, part {part[1]})")
    return f"{core} ({board})" if board else core


def _caches(root: Path) -> list[Cache]:
    """Caches out of sysfs; an instance is known by the CPUs that share it."""
    sizes: dict[tuple[int, str], int] = {}
    sharers: dict[tuple[int, str], set[str]] = {}
    cpus = root / "sys/devices/system/cpu"
    for index in sorted(cpus.glob("cpu[0-9]*/cache/index[0-9]*")):
        level, kind, size = (_text(index / name).strip() for name in ("level", "type", "size"))
        measure = re.fullmatch(r"(\d+)([KM]?)", size)
        if measure is None or not level.isdigit():
            continue
        scale = {"": 1, "K": 2**10, "M": 2**20}[measure[2]]
        sizes[int(level), kind] = int(measure[1]) * scale
        shared = _text(index / "shared_cpu_list").strip() or index.parts[-3]
        sharers.setdefault((int(level), kind), set()).add(shared)
    return [
        Cache(level=level, kind=kind, size_bytes=size, num_instances=len(sharers[level, kind]))
        for (level, kind), size in sorted(sizes.items())
    ]


def _memory_bytes(root: Path) -> int:
    found = re.search(r"^MemTotal:\s+(\d+) kB", _text(root / "proc/meminfo"), re.MULTILINE)
    return int(found[1]) * 1024 if found else 0


def _affinity() -> int:
    # Neither macOS nor Windows has affinity masks for processes in Python.
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _text(path: Path) -> str:
    """A kernel file's text; empty where this kernel has no such file."""
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def sysctl(name: str) -> str:
    """One value of macOS's sysctl; empty when this machine has none by that name."""
    done = subprocess.run(["sysctl", "-n", name], capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else ""


def mac_machine(ask: Callable[[str], str], gpus: list[Gpu], notes: list[str]) -> Machine:
    """The machine that macOS's sysctl describes."""
    num_logical = int(ask("hw.logicalcpu") or os.cpu_count() or 1)
    features = {
        "hw.optional.neon": "neon",
        "hw.optional.AdvSIMD": "neon",
        "hw.optional.arm.FEAT_BF16": "bf16",
        "hw.optional.arm.FEAT_I8MM": "i8mm",
        "hw.optional.arm.FEAT_SME": "sme",
        "hw.optional.avx2_0": "avx2",
        "hw.optional.avx512f": "avx512f",
    }
    levels = (
        (1, "Data", "hw.l1dcachesize"),
        (2, "Unified", "hw.l2cachesize"),
        (3, "Unified", "hw.l3cachesize"),
    )
    sizes = [(level, kind, int(ask(name) or 0)) for level, kind, name in levels]
    cpu = Cpu(
        model=ask("machdep.cpu.brand_string") or platform.processor(),
        architecture=platform.machine(),
        num_sockets=int(ask("hw.packages") or 1),
        num_physical_cores=int(ask("hw.physicalcpu") or num_logical),
        num_logical_cores=num_logical,
        num_affinity_cores=num_logical,
        cgroup_cores=None,
        num_usable_cores=num_logical,
        isa=list(dict.fromkeys(name for key, name in features.items() if ask(key) == "1")),
        # sysctl does not say how many instances there are.
        caches=[
            Cache(level=level, kind=kind, size_bytes=size, num_instances=1)
            for level, kind, size in sizes
            if size > 0
        ],
    )
    return Machine(
        os=f"macOS {platform.mac_ver()[0]}",
        cpu=cpu,
        memory_bytes=int(ask("hw.memsize") or 0),
        memory_limit_bytes=None,
        gpus=gpus,
        notes=[*notes, "macOS: cache instances and Apple's own GPU are not examined"],
    )
