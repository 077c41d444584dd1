"""The process that compiles launches for architectures, and reads what their machine code needs.

    python -m ridgeline.kernels.check.compiled FILE LAUNCHES ANSWER TARGET…

Arguments are specialised as a launch would: None and 1 are constants, multiples of 16 known.
"""

from __future__ import annotations

import contextlib
import gc
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction

from ridgeline.errors import in_words
from ridgeline.kernels.check.banks import bank_conflicts
from ridgeline.kernels.check.interpreted import load
from ridgeline.patches import patch
from ridgeline.records.kernel_check import CompiledKernel, KernelLaunch, LaunchArgument

TOOLS = Path(triton.__file__).parent / "backends/nvidia/bin"
TYPES = {
    "bfloat16": "*bf16", "float16": "*fp16", "float32": "*fp32", "float64": "*fp64",
    "int8": "*i8", "uint8": "*u8", "int16": "*i16", "int32": "*i32", "int64": "*i64",
    "bool": "*i1", "float8_e4m3fn": "*fp8e4nv", "float8_e5m2": "*fp8e5",
}  # fmt: skip
TELLING = {
    "HGMMA": r"\bHGMMA\b", "HMMA": r"\bHMMA\b", "UTCHMMA": r"\bUTCHMMA\b", "LDSM": r"\bLDSM\b",
    "LDGSTS": r"\bLDGSTS\b", "UTMALDG": r"\bUTMALDG\b", "LDG": r"\bLDG\.", "STG": r"\bSTG\.",
    "LDG.128": r"\bLDG\.\S*128", "STG.128": r"\bSTG\.\S*128", "LDL": r"\bLDL\b", "STL": r"\bSTL\b",
    "BAR": r"\bBAR\.", "MUFU": r"\bMUFU\b", "BSSY": r"\bBSSY\b", "UTMASTG": r"\bUTMASTG\b",
}  # fmt: skip
TELLING_AMD = {
    "mfma": r"\bv_mfma", "global_load": r"\b(?:global|buffer)_load",
    "load.128": r"\b(?:global|buffer)_load_dwordx4", "ds_read": r"\bds_read",
    "scratch": r"\bscratch_", "barrier": r"\bs_barrier", "v_writelane": r"\bv_writelane",
}  # fmt: skip


def compile_launch(
    kernel: Any, launch: KernelLaunch, target: str, number: int = 0
) -> CompiledKernel:
    """One kernel for one architecture; what stops the compiler is said in `error`."""
    amd = target.startswith("gfx")
    gpu = GPUTarget("hip", target, 64) if amd else GPUTarget("cuda", int(target[3:]), 32)
    told = CompiledKernel(
        kernel=launch.kernel,
        file=launch.file,
        target=target,
        launch=number,
        configuration=_configuration(launch),
    )
    try:
        built = triton.compile(_source(kernel, launch), target=gpu, options=launch.options)
    except Exception as error:
        return msgspec.structs.replace(told, error=f"{type(error).__name__}: {in_words(error)}")
    threads = int(built.metadata.num_warps) * (64 if amd else 32)
    read = _read_amd(built) if amd else _read_nvidia(built)
    return msgspec.structs.replace(
        told,
        threads=threads,
        shared_bytes=int(built.metadata.shared),
        bank_conflicts={} if amd else bank_conflicts(built.asm["ttgir"], gpu),
        **read,
    )


def _configuration(launch: KernelLaunch) -> str:
    """The constants of an autotuner's configuration and its options; empty without a tuner."""
    options = ", ".join(f"{name}={value}" for name, value in launch.options.items())
    return ", ".join(one for one in (launch.configuration, options) if one and launch.configuration)


def _source(kernel: Any, launch: KernelLaunch) -> ASTSource:
    given = {one.name: one for one in launch.arguments}
    signature: dict[str, str] = {}
    constants: dict[str, Any] = {}
    facts: dict[tuple[int], list[list[Any]]] = {}
    for index, parameter in enumerate(kernel.params):
        name = parameter.name
        one = given.get(name) or LaunchArgument(name=name, kind="constant", value=parameter.default)
        if one.kind == "tensor":
            signature[name] = TYPES[one.dtype]
            if one.aligned:
                facts[index,] = [["tt.divisibility", 16]]
        elif one.kind == "descriptor":
            signature[name] = f"tensordesc<{TYPES[one.dtype].removeprefix('*')}[{one.value}]>"
        elif one.kind == "dtype":
            signature[name], constants[name] = "constexpr", tl.dtype(one.dtype)
        elif one.kind == "other":
            raise ValueError(f"argument {name} is nothing that can be compiled ahead of time")
        elif parameter.is_constexpr or one.value is None or (
            type(one.value) is int and one.value == 1 and not parameter.do_not_specialize
        ):  # fmt: skip
            signature[name], constants[name] = "constexpr", one.value
        else:
            whole = isinstance(one.value, int)
            wide = whole and not -(2**31) <= int(one.value) < 2**31
            signature[name] = ("i64" if wide else "i32") if whole else "fp32"
            if whole and int(one.value) % 16 == 0 and not parameter.do_not_specialize:
                facts[index,] = [["tt.divisibility", 16]]
    return ASTSource(kernel, signature, constants, facts)


def _read_nvidia(built: Any) -> dict[str, Any]:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(built.asm["cubin"])
        file.flush()
        needs = _told(TOOLS / "cuobjdump", "-res-usage", file.name)
        code = _told(TOOLS / "nvdisasm", "-c", file.name)
    read = {key: int(value) for key, value in re.findall(r"\b(REG|STACK):(\d+)", needs)}
    counts = {name: len(re.findall(pattern, code)) for name, pattern in TELLING.items()}
    return {
        "registers": read["REG"],
        "stack_bytes": read["STACK"],
        "spill_instructions": counts["LDL"] + counts["STL"],
        "instructions": {name: count for name, count in counts.items() if count},
    }


def _told(tool: Path, *args: str) -> str:
    done = subprocess.run([tool, *args], capture_output=True, text=True, check=True)
    return done.stdout + done.stderr


def _read_amd(built: Any) -> dict[str, Any]:
    """What the assembly says; scalars that are kept in lanes of vectors are no spills to memory."""
    text = built.asm["amdgcn"]
    read = {
        key: int((re.findall(rf"\.{key}:?\s+(\d+)", text) or [0])[-1])
        for key in ("vgpr_count", "private_segment_fixed_size")
    }
    counts = {name: len(re.findall(pattern, text)) for name, pattern in TELLING_AMD.items()}
    return {
        "registers": read["vgpr_count"],
        "stack_bytes": read["private_segment_fixed_size"],
        "spill_instructions": counts["scratch"],
        "instructions": {name: count for name, count in counts.items() if count},
    }


def kernel_of(launch: KernelLaunch) -> Any:
    """The function of the launch's file and name, wherever it is kept: module, class, closure.

    Of several, the one whose line is the nearest: decorators may count among its lines or not.
    """
    known = [
        one
        for one in gc.get_objects()
        if issubclass(type(one), JITFunction)  # which asks nothing of objects that warn
        and one.fn.__name__ == launch.kernel
        and one.fn.__code__.co_filename == launch.file
    ]
    lines = {id(one): one.fn.__code__.co_firstlineno for one in known}
    return min(known, key=lambda one: abs(lines[id(one)] - launch.line), default=None)


def _make_those_of_the_example(module: ModuleType) -> list[Any]:
    """Let the example make the kernels that are made while it runs; nothing is launched."""
    made: list[Any] = []
    patch(
        "triton.runtime.jit:JITFunction.run",
        lambda _: lambda kernel, *__, **___: made.append(kernel),
    )
    # What comes back are tensors that no kernel has filled: the example may well fail on them.
    with contextlib.suppress(Exception):
        module.example()
    return made


def _with_variants(launches: list[KernelLaunch]) -> Iterator[tuple[int, KernelLaunch]]:
    """Each launch with its number, and as the autotuner's other options would compile it."""
    for number, launch in enumerate(launches):
        for options in (launch.options, *launch.variants):
            yield number, msgspec.structs.replace(launch, options=options)


def compile_all(launches: list[KernelLaunch], targets: list[str]) -> Iterator[CompiledKernel]:
    """Each kernel once per way of being launched and architecture."""
    done = set()
    for number, launch in _with_variants(launches):
        key = msgspec.json.encode([launch.kernel, launch.file, launch.arguments, launch.options])
        if key in done:
            continue
        done.add(key)
        kernel = kernel_of(launch)
        for target in targets:
            if kernel is None:
                error = f"{launch.kernel} of line {launch.line} was not made again"
                yield CompiledKernel(
                    kernel=launch.kernel, file=launch.file, target=target, error=error
                )
            else:
                yield compile_launch(kernel, launch, target, number)


def main(file: str, launches: str, answer: str, *targets: str) -> None:
    """Read the launches, load the file again with kernels that compile, write the answer."""
    module = load(Path(file))
    wanted = msgspec.json.decode(Path(launches).read_bytes(), type=list[KernelLaunch])
    made = []
    if any(kernel_of(one) is None for one in wanted):
        made = _make_those_of_the_example(module)
    Path(answer).write_bytes(msgspec.json.encode(list(compile_all(wanted, list(targets)))))
    del made  # alive until here


if __name__ == "__main__":
    main(*sys.argv[1:])
