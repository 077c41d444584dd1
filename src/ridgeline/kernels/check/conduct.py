"""Runs the two processes of a check and puts their answers together."""

from __future__ import annotations

import ast
import contextlib
import importlib.metadata
import importlib.util
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from ridgeline.errors import InputError, MissingExtra, ScriptError
from ridgeline.records.input_file import read_text
from ridgeline.records.kernel_check import (
    CompiledKernel,
    KernelCheck,
    KernelFinding,
    KernelLaunch,
)

TARGETS = ("sm_80", "sm_86", "sm_90", "sm_100", "sm_120", "gfx942")
"""The architectures that kernels are compiled for when none is named."""
EXAMPLES = Path(__file__).parent / "examples"
SILENCE_SECONDS = 20.0
"""A part that takes longer says so, and again each time it has."""
_SLOW = {
    "interpreted": "example() runs, one program after the other: small sizes show as much",
    "compiled": "kernels are compiled, for one architecture after the other",
}


class _Interpreted(msgspec.Struct):
    error: str = ""
    launches: list[KernelLaunch] = []
    findings: list[KernelFinding] = []
    compared: int = 0


def find(target: str) -> tuple[Path, str]:
    """The file and the kernel (empty: all) of `FILE.py`, `FILE.py:KERNEL` or a shipped NAME.

    Raises:
        InputError: There is no such file and no such name, or the file is no Python.
    """
    own = {one.stem: one for one in sorted(EXAMPLES.glob("*.py")) if one.stem != "__init__"}
    path, _, kernel = target.partition(":")
    if path in own:
        return own[path], kernel
    file = Path(path)
    if not file.is_file() or file.suffix != ".py":
        raise InputError(
            f"{path}: no Python file, and none of our kernels; name a file with an example(), or "
            f"one of {', '.join(own)}"
        )
    cure = "name a Python file with an example()"
    try:
        ast.parse(read_text(file, cure=cure))
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = getattr(error, "lineno", None)
        place = f"{file}, line {line}" if line else str(file)
        raise InputError(f"{place}: is no Python; {cure}") from None
    return file.resolve(), kernel


def check(target: str, architectures: Sequence[str]) -> KernelCheck:
    """Run a file's example under the interpreter, then compile what it launched.

    Raises:
        InputError: The file is not there, or has no example that launches a kernel.
        ScriptError: The file or its example fails.
    """
    for module in ("torch", "triton"):
        if importlib.util.find_spec(module) is None:
            raise MissingExtra(module, "train")
    file, kernel = find(target)
    with tempfile.TemporaryDirectory() as folder:
        answer, launches = Path(folder) / "answer.json", Path(folder) / "launches.json"
        run_part(file, "interpreted", [str(file), kernel, str(answer)], interpret="1")
        seen = msgspec.json.decode(answer.read_bytes(), type=_Interpreted)
        if seen.error:
            raise InputError(f"{file}: {seen.error}")
        launches.write_bytes(msgspec.json.encode(seen.launches))
        run_part(file, "compiled", [str(file), str(launches), str(answer), *architectures])
        built = msgspec.json.decode(answer.read_bytes(), type=list[CompiledKernel])
    return KernelCheck(
        file=str(file),
        triton=importlib.metadata.version("triton"),
        launches=seen.launches,
        compiled=built,
        findings=_merged(seen.findings),
        compared=seen.compared,
    )


def run_part(file: Path, part: str, args: list[str], interpret: str = "0") -> None:
    """Run `interpreted.py` or `compiled.py` in a process of its own.

    Raises:
        ScriptError: It fails.
    """
    environment = {
        **os.environ,
        "TRITON_INTERPRET": interpret,
        "OMP_NUM_THREADS": "1",
        "PYTHONSAFEPATH": "1",  # a random.py where the command was called is not Python's
    }
    with _said_to_run(f"{file}: {_SLOW[part]}"):
        done = subprocess.run(
            [sys.executable, "-m", f"ridgeline.kernels.check.{part}", *args],
            env=environment,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        )
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise ScriptError(f"{file}: its example() fails: {last}", details=done.stderr)


@contextlib.contextmanager
def _said_to_run(what: str) -> Iterator[None]:
    """Say on stderr what takes long, as long as the block does."""
    ended = threading.Event()

    def say() -> None:
        while not ended.wait(SILENCE_SECONDS):
            sys.stderr.write(f"ridgeline: {what}\n")

    saying = threading.Thread(target=say, daemon=True)
    saying.start()
    try:
        yield
    finally:
        ended.set()
        saying.join()


def _merged(findings: Sequence[KernelFinding]) -> list[KernelFinding]:
    """Each finding once, though several launches may show it."""
    first: dict[tuple[str, str, str], KernelFinding] = {}
    for one in findings:
        first.setdefault((one.cause, one.kernel, one.where), one)
    return list(first.values())
