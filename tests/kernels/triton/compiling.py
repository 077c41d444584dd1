"""Kernels as a launch would compile them, for any architecture, without one at hand.

What machine code needs is read from it: registers, stack and shared memory. The table beside this
file holds what was found; `python -m tests.kernels.triton.compiling --write` makes it anew.
"""

from __future__ import annotations

import csv
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest
import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from ridgeline.kernels.triton import tile_table

TABLE = Path(__file__).parent / "resources.csv"
TARGETS = {
    "sm_80": GPUTarget("cuda", 80, 32),
    "sm_86": GPUTarget("cuda", 86, 32),
    "sm_90": GPUTarget("cuda", 90, 32),
    "sm_100": GPUTarget("cuda", 100, 32),
    "sm_120": GPUTarget("cuda", 120, 32),
    "gfx942": GPUTarget("hip", "gfx942", 64),
}
SHARED_BYTES = {
    "sm_80": 166_912, "sm_86": 101_376, "sm_90": 232_448, "sm_100": 232_448, "sm_120": 101_376,
    "gfx942": 65_536,
}  # fmt: skip
"""Of one program at most (CUDA C++ Programming Guide, compute capabilities; CDNA 3's ISA)."""
TYPES = {
    torch.bfloat16: "*bf16",
    torch.float16: "*fp16",
    torch.float32: "*fp32",
    torch.int8: "*i8",
    torch.uint8: "*u8",
    torch.int32: "*i32",
    torch.int64: "*i64",
}
OF_A_LAUNCH = {"num_warps", "num_stages", "enable_fp_fusion"}


class Resources(NamedTuple):
    """What one program needs."""

    registers: int
    stack_bytes: int
    spilled: int
    shared_bytes: int


@dataclass
class Recorder:
    """Stands for a kernel; keeps what it is launched with."""

    kernel: Any
    launches: list[tuple[tuple[Any, ...], dict[str, Any]]] = field(default_factory=list)

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        assert 1 <= len(grid) <= 3
        assert all(size > 0 for size in grid)
        return lambda *args, **options: self.launches.append((args, options))


def as_launched(
    kernel: Any, args: tuple[Any, ...], options: Mapping[str, Any]
) -> tuple[ASTSource, dict[str, Any]]:
    """As `triton.jit` would: None and 1 are constants, multiples of 16 are known to be."""
    chosen = {name: value for name, value in options.items() if name in OF_A_LAUNCH}
    rest = {name: value for name, value in options.items() if name not in OF_A_LAUNCH}
    given = dict(zip(kernel.arg_names, args, strict=False)) | rest
    signature, constants, facts = {}, {}, {}
    for index, name in enumerate(kernel.arg_names):
        value = given[name]
        if kernel.params[index].do_not_specialize:
            signature[name] = "fp32" if isinstance(value, float) else "i32"
        elif isinstance(value, torch.Tensor):
            signature[name], facts[index,] = TYPES[value.dtype], [["tt.divisibility", 16]]
        elif (
            kernel.params[index].is_constexpr
            or value is None
            or (type(value) is int and value == 1)
        ):
            signature[name], constants[name] = "constexpr", value
        else:
            signature[name] = "fp32" if isinstance(value, float) else "i32"
            if signature[name] == "i32" and value % 16 == 0:
                facts[index,] = [["tt.divisibility", 16]]
    return ASTSource(kernel, signature, constants, facts), chosen


def resources_of(built: Any, target: str) -> Resources:
    """Read from machine code what it needs."""
    if target.startswith("gfx"):
        text = built.asm["amdgcn"]
        read = {
            key: int(re.findall(rf"\.{key}:?\s+(\d+)", text)[-1])
            for key in (
                "vgpr_count", "vgpr_spill_count", "private_segment_fixed_size",
            )
        }  # fmt: skip
        # Scalars that spill go to lanes of vector registers, which are counted, not to memory.
        stack, spilled = read["private_segment_fixed_size"], read["vgpr_spill_count"]
        return Resources(read["vgpr_count"], stack, spilled, built.metadata.shared)
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(built.asm["cubin"])
        file.flush()
        done = subprocess.run(
            [tool, "-res-usage", file.name], capture_output=True, text=True, check=True
        )
    read = {
        key: int(value)
        for key, value in re.findall(r"\b(REG|STACK|LOCAL):(\d+)", done.stdout + done.stderr)
    }
    return Resources(read["REG"], read["STACK"], read["LOCAL"], built.metadata.shared)


_compiling_for = "sm_90"


@contextmanager
def compiling_for(target: str) -> Iterator[None]:
    """Launches that are recorded inside are those of a device of this architecture."""
    global _compiling_for  # noqa: PLW0603  (cases take no arguments)
    before, _compiling_for = _compiling_for, target
    try:
        yield
    finally:
        _compiling_for = before


@contextmanager
def recorded(module: ModuleType, *names: str) -> Iterator[dict[str, Recorder]]:
    """Kernels of a module stood for, on a GPU of 132 processors."""
    facts = {
        "num_processors": lambda _: 132,
        "shared_bytes": lambda _: SHARED_BYTES[_compiling_for],
        "major_capability": lambda _: (
            TARGETS[_compiling_for].arch // 10 if _compiling_for.startswith("sm_") else 0
        ),
    }
    recorders = {name: Recorder(getattr(module, name)) for name in names}
    with pytest.MonkeyPatch.context() as patch:
        for name, recorder in recorders.items():
            patch.setattr(module, name, recorder)
        for place in (module, tile_table):
            for name, told in facts.items():
                if hasattr(place, name):
                    patch.setattr(place, name, told)
        yield recorders


def measure(case: str, target: str) -> dict[str, Resources]:
    """Every kernel that a case launches, by name, compiled for a target."""
    from tests.kernels.triton.launches import CASES

    found = {}
    with compiling_for(target):
        recorders = CASES[case]()
    for name, recorder in recorders.items():
        assert recorder.launches, f"{case} launches no {name}"
        for number, (args, options) in enumerate(recorder.launches):
            source, chosen = as_launched(recorder.kernel, args, options)
            built = triton.compile(source, target=TARGETS[target], options=chosen)
            key = name if len(recorder.launches) == 1 else f"{name}-{number + 1}"
            found[key] = resources_of(built, target)
    return found


def table() -> dict[tuple[str, str, str, str], Resources]:
    """What was found: (triton's version, case, kernel, target) to resources."""
    with TABLE.open() as file:
        return {
            (row["triton"], row["case"], row["kernel"], row["target"]): Resources(
                *(int(row[name]) for name in Resources._fields)
            )
            for row in csv.DictReader(file)
        }


def write() -> None:
    """Compile everything; other versions' rows stay."""
    from tests.kernels.triton.launches import CASES

    rows = dict(table()) if TABLE.exists() else {}
    rows = {key: value for key, value in rows.items() if key[0] != triton.__version__}
    for case in CASES:
        for target in TARGETS:
            for kernel, needs in measure(case, target).items():
                rows[triton.__version__, case, kernel, target] = needs
                sys.stdout.write(f"{case} {kernel} {target} {needs}\n")
    with TABLE.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["triton", "case", "kernel", "target", *Resources._fields])
        writer.writerows([*key, *needs] for key, needs in sorted(rows.items()))


if __name__ == "__main__":
    assert sys.argv[1:] == ["--write"], __doc__
    write()
