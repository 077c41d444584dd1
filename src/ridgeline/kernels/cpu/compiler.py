"""The C++ compiler of this machine: which it is, what it can be told here, and calls of it.

Two variables of the environment are read, nowhere else in this room:

    CXX                     a compiler and its first arguments ("ccache g++")
    RIDGELINE_CPU_TARGET    the CPU that kernels are made for, as in `TARGETS`; else this one

Nothing here runs a compiler before something must be compiled: kernels that were made ahead load on
a machine that has none.
"""

from __future__ import annotations

import contextlib
import functools
import os
import platform
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path

import torch

from ridgeline.errors import InputError
from ridgeline.hardware.machine import this_machine

FOUND = ("c++", "g++", "clang++")
"""What is looked for where CXX names none."""

FLAGS = (
    "-std=c++20",
    "-O3",
    "-fPIC",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fvisibility=hidden",
    "-Wno-psabi",  # vectors are passed within this library only
)
NATIVE = "native"
_AVX2 = ("avx2", "fma", "f16c", "bmi1", "bmi2", "movbe", "abm")
_AVX512 = (*_AVX2, "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl")
_BF16 = ("avx512_bf16", "avx512vbmi", "avx512_vnni")
TARGETS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "avx2": (("-march=x86-64-v3",), _AVX2),
    "avx512": (("-march=x86-64-v4",), _AVX512),
    "avx512-bf16": (
        ("-march=x86-64-v4", "-mavx512bf16", "-mavx512vbmi", "-mavx512vnni"),
        (*_AVX512, *_BF16),
    ),
}
"""Name → the compiler's flags, and what the CPU must list to run what they make. They are the kinds
of x86-64 that kernels tell apart; only `native` knows others."""

BYTE_PRODUCTS = frozenset({"avx512_vnni", "avx_vnni", "dotprod"})
"""Instructions of CPUs that multiply four bytes at once; those with AMX or i8mm have them too."""

_PROBE = """
#include <cstdint>
using floats = float __attribute__((vector_size(64)));
floats larger(floats a, floats b) { return a > b ? a : b; }
"""
_TEAM = "#ifndef _OPENMP\n#error\n#endif\nint omp_get_num_threads();\nint main() { return 0; }\n"


_LOOK_SECONDS = 0.2
"""Between two looks at whether somebody wants an end."""
INSTALL = "install one (Debian, Ubuntu: apt install g++; macOS: xcode-select --install)"


class Unavailable(InputError):
    """There are no kernels here, through no fault of a setting; torch's operators remain."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompilerSettings:
    """What the environment asks for."""

    compiler: tuple[str, ...] | None
    """A program and its first arguments; None: whichever is found."""
    target: str
    """`NATIVE` or one of `TARGETS`."""

    @property
    def multiplies_bytes(self) -> bool:
        """Whether kernels for the target have products of bytes."""
        has = this_machine(gpus=[]).cpu.isa if self.target == NATIVE else TARGETS[self.target][1]
        return bool(BYTE_PRODUCTS & set(has))

    def check_cpu(self) -> None:
        """See that this CPU runs what is made for the target.

        Raises:
            InputError: It does not; the message says what it lacks.
        """
        known = instructions().split()
        if self.target == NATIVE or not known:
            return
        missing = [name for name in TARGETS[self.target][1] if name not in known]
        if missing:
            raise InputError(
                f"RIDGELINE_CPU_TARGET={self.target}: this CPU lacks {', '.join(missing)}; unset it"
            )


def settings(environment: Mapping[str, str] = os.environ) -> CompilerSettings:
    """What the environment asks for.

    Raises:
        InputError: A variable has no meaning.

    >>> settings({"CXX": "ccache g++"}).compiler
    ('ccache', 'g++')
    """
    given = environment.get("CXX", "")
    try:
        compiler = tuple(shlex.split(given))
    except ValueError as error:
        raise InputError(f"CXX={given}: {str(error).lower()}; correct or unset it") from None
    target = environment.get("RIDGELINE_CPU_TARGET", "") or NATIVE
    if target not in (NATIVE, *TARGETS):
        raise InputError(f"RIDGELINE_CPU_TARGET={target}: known are {NATIVE}, {', '.join(TARGETS)}")
    if target != NATIVE and not _is_x86():
        raise InputError(
            f"RIDGELINE_CPU_TARGET={target} is for x86-64, this is {platform.machine()}; unset it"
        )
    return CompilerSettings(compiler=compiler or None, target=target)


@dataclass(frozen=True, slots=True, kw_only=True)
class CppCompiler:
    """A compiler that makes kernels, and how it is told to."""

    command: tuple[str, ...]
    version: str
    """Its own first line about itself."""
    compile_flags: tuple[str, ...]
    """The flags beside `FLAGS`: instructions and threads."""
    link_flags: tuple[str, ...]
    parallel: bool
    """Attention, norms and whole layers run on torch's pool of threads; else on one thread."""


def find_compiler(wanted: CompilerSettings) -> CppCompiler:
    """The compiler that is asked for, or the first one that compiles what kernels are made of.

    Raises:
        InputError: CXX names none.
        Unavailable: None was found.
    """
    if wanted.compiler is not None:
        name = shlex.join(wanted.compiler)
        problem = _problem(wanted.compiler)
        if problem:
            raise InputError(f"CXX={name}: {problem}; correct or unset it")
        return _described(wanted.compiler, wanted.target)
    problems = []
    for name in FOUND:
        if shutil.which(name):
            problem = _problem((name,))
            if not problem:
                return _described((name,), wanted.target)
            problems.append(f"{name}: {problem}")
    found = ", ".join(problems) or f"neither {', '.join(FOUND)} is on the PATH"
    raise Unavailable(f"no C++ compiler ({found}); {INSTALL}")


@functools.cache
def instructions() -> str:
    """The CPU's instruction set extensions as Linux lists them; elsewhere the CPU's name."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ""
    line = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    return line.partition(":")[2].strip()


def _is_x86() -> bool:
    return platform.machine().lower() in ("x86_64", "amd64")


def _problem(command: tuple[str, ...]) -> str | None:
    """Why it does not compile C++20 with vectors; None: it does."""
    if shutil.which(command[0]) is None:
        return f"no program {command[0]!r} is on the PATH"
    return _refusal((*command, *FLAGS), _PROBE)


def _described(command: tuple[str, ...], target: str) -> CppCompiler:
    said = subprocess.run([*command, "--version"], capture_output=True, text=True, check=False)
    threads, link_flags = _threads(command)
    return CppCompiler(
        command=command,
        version=(said.stdout.splitlines() or [command[0]])[0],
        compile_flags=(*_instruction_flags(command, target), *threads),
        link_flags=link_flags,
        parallel=bool(threads),
    )


def _instruction_flags(command: tuple[str, ...], target: str) -> tuple[str, ...]:
    # On ARM `-march` leaves the core out, and some compilers know one of the two only.
    native = [("-march=native",), ("-mcpu=native",)]
    wanted = (native if _is_x86() else native[::-1]) if target == NATIVE else [TARGETS[target][0]]
    for flags in wanted:
        if not _refusal((*command, *flags), _PROBE):
            return flags
    if target == NATIVE:
        return ()  # the compiler's own idea of this kind of CPU
    raise InputError(
        f"RIDGELINE_CPU_TARGET={target}: {command[0]} does not know {' '.join(wanted[0])}"
    )


def _threads(command: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Flags for compiling and linking by which a team comes from torch's pool; see `team.h`."""
    package = Path(torch.__file__).parent
    ours = [*package.glob("lib/libgomp*.so*"), *package.parent.glob("torch.libs/libgomp*.so*")]
    if ours:
        return ("-DRIDGELINE_GOMP",), (str(ours[0]),)
    if sys.platform == "darwin":  # Apple's compiler has no library of its own; torch brings one
        flags, library = ("-Xpreprocessor", "-fopenmp"), package / "lib" / "libomp.dylib"
        return (flags, (str(library),)) if library.exists() else ((), ())
    return ((), ()) if _refusal((*command, "-fopenmp"), _TEAM, link=True) else (("-fopenmp",),) * 2


def _refusal(command: tuple[str, ...], code: str, *, link: bool = False) -> str | None:
    """The first line of what is wrong when this is compiled; None: nothing is."""
    with tempfile.TemporaryDirectory() as folder:
        source, out = Path(folder, "probe.cpp"), Path(folder, "probe.out")
        source.write_text(code)
        kind = () if link else ("-c",)
        try:
            done = subprocess.run(
                [*command, *kind, str(source), "-o", str(out)],
                capture_output=True,
                text=True,
                check=False,
            )
        except OSError as error:
            return f"it cannot be run ({error.strerror})"
        if done.returncode == 0 and out.exists():
            return None
        lines = [line for line in done.stderr.splitlines() if "error" in line.lower()]
        said = [*lines, *done.stderr.splitlines(), "it says nothing and makes nothing"][0]
        return f"it does not compile C++20 ({said.replace(str(source), 'probe.cpp')})"


class CompilerCalls:
    """Calls of the compiler, as many at once as there are cores; the first failure ends all."""

    def __init__(self, jobs: Sequence[tuple[list[str], Path]]) -> None:
        self._jobs = jobs
        self._running: set[subprocess.Popen[str]] = set()
        self._lock = threading.Lock()
        self._ended = False

    def run(self, done: Callable[[], None]) -> None:
        """Run all; `done` is called after each."""
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            futures: list[Future[None]] = []
            try:
                for job in self._jobs:
                    futures.append(pool.submit(self._one, *job))
                left = set(futures)
                while left:
                    # Without an end, a signal right before the wait would be heard after it.
                    ended, left = wait(left, _LOOK_SECONDS, FIRST_COMPLETED)
                    for future in ended:
                        future.result()
                        done()
            except BaseException:
                self._end(futures)
                raise

    def _end(self, futures: Sequence[Future[None]]) -> None:
        for future in futures:
            future.cancel()
        with self._lock:
            self._ended = True
            for process in self._running:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)

    def _one(self, command: list[str], output: Path) -> None:
        """The output appears whole or not at all."""
        # The number, because the compiler of a process that was killed may still write its own.
        unfinished = output.with_name(f"{output.name}.{os.getpid()}.part")
        with self._lock:
            if self._ended:
                return
            process = subprocess.Popen(  # a group of its own: a compiler is several processes
                [*command, "-o", str(unfinished)],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
                process_group=0,
            )
            self._running.add(process)
        _, said = process.communicate()
        with self._lock:
            self._running.discard(process)
        if process.returncode == 0 and unfinished.exists():
            unfinished.replace(output)
            return
        unfinished.unlink(missing_ok=True)
        if not self._ended:
            raise Unavailable(_complaint(command, said, output.with_suffix(".log")))


def _complaint(command: list[str], said: str, log: Path) -> str:
    log.write_text(shlex.join(command) + "\n" + said)
    lines = said.splitlines() or ["it says nothing"]
    first = next((line for line in lines if "error" in line), lines[0])
    return f"{command[0]} cannot compile the CPU kernels: {first} (all of it: {log})"
