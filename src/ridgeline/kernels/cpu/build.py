"""Compiles the C++ kernels beside this file once per machine, and loads them into torch.

Every `.cpp` becomes an object file and all of them one library of operators, `torch.ops.ridgeline`,
under the user's cache folder. Both are found again by what they were made of: sources, flags, torch
and the CPU, whose own instructions `-march=native` uses. Processes that start together wait for the
first to build.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

from ridgeline.errors import InputError
from ridgeline.hardware.ceilings import cache_folder

SOURCES = Path(__file__).parent
COMPILER = "g++"
FLAGS = (
    "-std=c++20",
    "-O3",
    "-march=native",
    "-fopenmp",  # torch brings libgomp along, so kernels and torch share one pool of threads
    "-fPIC",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fvisibility=hidden",
    "-Wno-psabi",  # vectors are passed within this library only
)


@functools.cache
def load() -> None:
    """Make `torch.ops.ridgeline` callable on CPU tensors; builds it where that is needed.

    Raises:
        InputError: There is no g++, or it could not compile.
    """
    sources = sorted(SOURCES.glob("*.cpp"))
    torch.ops.load_library(str(built(sources, cache_folder() / "kernels")))


def ensure_loaded() -> None:
    """`load`, for wrappers that graphs are made of: whoever compiles one has loaded them."""
    if not torch.compiler.is_compiling():
        load()


def built(sources: list[Path], folder: Path) -> Path:
    """The library of these sources under `folder`, compiled if it is not there yet."""
    objects = [folder / "objects" / f"{source.stem}-{_key(source)}.o" for source in sources]
    digest = hashlib.sha256("\n".join(one.name for one in objects).encode()).hexdigest()[:16]
    library = folder / f"ridgeline_cpu-{digest}.so"
    if library.exists():
        return library
    try:
        (folder / "objects").mkdir(parents=True, exist_ok=True)
        with _locked(folder / "lock"):
            if not library.exists():
                _build(sources, objects, library)
    except OSError as error:
        raise InputError(f"{folder}: cannot keep compiled kernels there: {error}") from None
    return library


def _key(source: Path) -> str:
    """What an object file depends on: its source, all headers, flags, torch and the CPU."""
    digest = hashlib.sha256(source.read_bytes())
    for header in sorted(source.parent.glob("*.h")):
        digest.update(header.read_bytes())
    for part in (*FLAGS, torch.__version__, platform.machine(), _instructions()):
        digest.update(part.encode() + b"\0")
    return digest.hexdigest()[:16]


@functools.cache
def _instructions() -> str:
    """The CPU's instruction set extensions as Linux lists them."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line for line in lines if line.startswith(("flags", "Features"))), "")


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Only one process at a time; the lock falls with its holder."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _build(sources: list[Path], objects: list[Path], library: Path) -> None:
    compiler = shutil.which(COMPILER)
    if compiler is None:
        raise InputError(
            f"{COMPILER} is not installed: the CPU kernels are compiled at first use; install it "
            "(Debian, Ubuntu: apt install g++)"
        )
    missing = [pair for pair in zip(sources, objects, strict=True) if not pair[1].exists()]
    began = time.perf_counter()
    sys.stderr.write(
        f"ridgeline: compiling CPU kernels ({len(missing)} files, once per machine) … "
    )
    sys.stderr.flush()
    headers = Path(torch.__file__).parent / "include"
    compile_one = [compiler, *FLAGS, "-isystem", str(headers), "-c"]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(lambda pair: _run([*compile_one, str(pair[0])], pair[1]), missing))
    libraries = Path(torch.__file__).parent / "lib"
    link = [compiler, "-shared", "-fopenmp", *map(str, objects)]
    _run([*link, f"-L{libraries}", "-ltorch_cpu", "-lc10"], library)
    sys.stderr.write(f"{time.perf_counter() - began:.0f} s\n")


def _run(command: list[str], output: Path) -> None:
    """One call of the compiler; its output appears whole or not at all."""
    unfinished = output.with_name(f"{output.name}.{os.getpid()}")
    done = subprocess.run(
        [*command, "-o", str(unfinished)], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        sys.stderr.write("failed\n")
        log = output.with_suffix(".log")
        log.write_text(" ".join(command) + "\n" + done.stderr)
        first = next((line for line in done.stderr.splitlines() if "error" in line), "no message")
        raise InputError(f"{COMPILER} cannot compile the CPU kernels: {first} (all of it: {log})")
    unfinished.replace(output)
