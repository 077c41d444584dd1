"""Compiles the C++ kernels beside this file once per machine, and loads them into torch.

They make several libraries of operators, all of them in `torch.ops.ridgeline`: `core` has what
every model needs, a weight format has its own, made when it is first needed. They lie in the user's
cache folder and are found again by what they were made of: sources, flags, torch and the CPU (or
the target that `compiler.py` reads), not by the compiler, so that what was made ahead loads on a
machine without one. Processes that start together wait for the first to build.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import platform
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import torch

from ridgeline.errors import InputError, in_words
from ridgeline.hardware.ceilings import cache_folder
from ridgeline.kernels.cpu import compiler
from ridgeline.kernels.cpu.compiler import FLAGS, NATIVE, CompilerCalls, CppCompiler, Unavailable

SOURCES = Path(__file__).parent
CORE = "core"
LIBRARIES: dict[str, tuple[tuple[str, ...], ...]] = {
    CORE: (
        ("decoder_layers", "formats", "norm", "gated_activation"),
        ("paged_attention", "cache_write"),
        ("linear_dense", "linear_vectors"),
    ),
    "linear_int8": (("linear_int8",),),
    "linear_int4": (("linear_int4",),),
    "linear_w8a8": (("linear_w8a8",),),
    "column_products": (("column_products", "rounded_products"),),
    "integer_rounding": (("column_walk", "range_search"),),
}
"""Library → what is compiled for it, the longest first: sources that stand together are compiled as
one, which reads torch's headers once."""
ALONE = frozenset({CORE, "column_products", "integer_rounding"})
"""The libraries that need no other; the rest need `core`."""

LOST = (
    "until then language models run on PyTorch's own operators, right but slower, and a batch may "
    "tip the last bit of a result; what `ridgeline kernels build` makes elsewhere can be copied"
)
"""What a machine without kernels does."""

OnProgress = Callable[[int, int], None]
"""Called with how many files of how many are compiled, first with none."""


class Made(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A library that is there."""

    library: str
    path: str
    bytes: int
    compiler: str
    """The compiler's version line."""
    flags: tuple[str, ...]
    parallel: bool
    """On torch's pool of threads; else attention, norms and whole layers run on one."""
    seconds: float
    """The time that compiling took."""


@dataclass(frozen=True, slots=True)
class _Unit:
    """Sources that are compiled as one."""

    sources: tuple[Path, ...]
    object: Path

    def code(self) -> str:
        return "".join(f'#include "{source}"\n' for source in self.sources)


@dataclass(frozen=True, slots=True, kw_only=True)
class LibraryRecipe:
    """How one library is made, and where it lies."""

    name: str
    units: tuple[_Unit, ...]
    path: Path
    needs: LibraryRecipe | None

    @property
    def note(self) -> Path:
        """Where `Made` is kept."""
        return self.path.with_suffix(".json")

    def made(self) -> Made | None:
        """What is known of the library; None: it is not there."""
        try:
            found = msgspec.json.decode(self.note.read_bytes(), type=Made)
        except (OSError, msgspec.MsgspecError):
            return None
        # A cache folder may have been copied from elsewhere.
        return msgspec.structs.replace(found, path=str(self.path)) if self.path.exists() else None


@functools.cache
def load(*libraries: str) -> None:
    """Make operators of `torch.ops.ridgeline` callable on CPU tensors; builds where that is needed.

    Args:
        libraries: Names from `LIBRARIES`; none: all of them.

    Raises:
        Unavailable: There is no compiler, it could not compile, or what it made does not load.
        InputError: The environment asks for something that is not there.
    """
    compiler.settings().check_cpu()
    recipes = wanted_recipes(libraries)
    build_missing(recipes)
    for one in recipes:
        _load(one.path)


@functools.cache
def _load(library: Path) -> None:
    try:
        torch.ops.load_library(library)
    except OSError as error:
        raise Unavailable(f"{library} does not load: {in_words(error)}; remove it") from None


@functools.cache
def unavailable() -> str | None:
    """Why there are no CPU kernels here, in words for the user; None: they are loaded.

    The first time it also says on standard error, in one line, what that costs.

    Raises:
        InputError: The environment asks for something that is not there.
    """
    try:
        load(CORE)
    except Unavailable as error:
        sys.stderr.write(f"ridgeline: {error}; {LOST}\n")
        return str(error)
    return None


@functools.cache
def have(library: str, until_then: str) -> bool:
    """Whether a library that PyTorch can do without is loaded, which the first call sees to.

    Args:
        library: A name from `LIBRARIES`.
        until_then: What it costs where it cannot be, for a line on standard error, said once.
    """
    try:
        load(library)
    except Unavailable as error:
        sys.stderr.write(f"ridgeline: {error}; {until_then}\n")
        return False
    return True


def ensure_loaded() -> None:
    """Load what can be had, for wrappers: without it an operator's PyTorch form runs.

    Whoever compiles a graph of operators has loaded them.
    """
    if not torch.compiler.is_compiling():
        unavailable()


def make_ahead(libraries: Sequence[str], on_progress: OnProgress) -> list[Made]:
    """Make what `load` would, without loading it, for this CPU or for the target's.

    A compiler that CXX names makes anew what another one has made.

    Raises:
        Unavailable: They cannot be compiled, or not be kept.
        InputError: The environment asks for something that is not there, or no such library.
    """
    wanted = compiler.settings()
    recipes = wanted_recipes(libraries)
    chosen = compiler.find_compiler(wanted) if wanted.compiler else None
    found = [one.made() for one in recipes]
    if chosen and all(one and one.compiler == chosen.version for one in found):
        chosen = None
    return build_missing(recipes, on_progress, chosen)


def wanted_recipes(libraries: Sequence[str] = ()) -> list[LibraryRecipe]:
    """How these of `LIBRARIES` (none: all) are made as the environment asks, `core` first.

    Raises:
        InputError: The environment asks for something that is not there, or no such library.
    """
    unknown = [name for name in libraries if name not in LIBRARIES]
    if unknown:
        raise InputError(f"{unknown[0]}: no library of kernels; known are {', '.join(LIBRARIES)}")
    return recipes_of(libraries, cache_folder() / "kernels", compiler.settings().target)


def recipes_of(libraries: Sequence[str], folder: Path, target: str = NATIVE) -> list[LibraryRecipe]:
    """How these of `LIBRARIES` (none: all) are made, what others need first."""
    core = recipe_of(CORE, _sources(CORE), folder, target)
    wanted = list(libraries or LIBRARIES)
    others = [name for name in wanted if name != CORE]
    needed = [] if ALONE.issuperset(others) and CORE not in wanted else [core]
    return needed + [
        recipe_of(name, _sources(name), folder, target, None if name in ALONE else core)
        for name in others
    ]


def recipe_of(
    name: str,
    groups: Sequence[Sequence[Path]],
    folder: Path,
    target: str = NATIVE,
    needs: LibraryRecipe | None = None,
) -> LibraryRecipe:
    """How a library is made of sources, each group compiled as one."""
    units = [
        _Unit(tuple(group), folder / "objects" / f"{group[0].stem}-{_key(group, target)}.o")
        for group in groups
    ]
    parts = [*([needs.path.name] if needs else []), *(unit.object.name for unit in units)]
    digest = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]
    path = folder / f"ridgeline_{name}-{digest}.so"
    return LibraryRecipe(name=name, units=tuple(units), path=path, needs=needs)


def _sources(library: str) -> list[list[Path]]:
    return [[SOURCES / f"{name}.cpp" for name in group] for group in LIBRARIES[library]]


def build_missing(
    recipes: Sequence[LibraryRecipe],
    on_progress: OnProgress | None = None,
    anew_by: CppCompiler | None = None,
) -> list[Made]:
    """Compile the libraries that are not there yet, and return all.

    Args:
        recipes: In one folder; what one needs comes before it.
        on_progress: None: a line on standard error.
        anew_by: Compiles all of them, whether they are there or not.

    Raises:
        Unavailable: They cannot be compiled, or not be kept.
        InputError: The environment asks for something that is not there.
    """
    folder = recipes[0].path.parent
    try:
        if anew_by is not None or not all(one.made() for one in recipes):
            (folder / "objects").mkdir(parents=True, exist_ok=True)
            with _locked(folder / "lock"):
                # Another process may have made them meanwhile.
                missing = [one for one in recipes if anew_by is not None or not one.made()]
                if missing:
                    _sweep(folder)
                    by = anew_by or compiler.find_compiler(compiler.settings())
                    _build(missing, by, on_progress, anew=anew_by is not None)
    except OSError as error:
        reason = in_words(error)
        raise Unavailable(f"{folder}: cannot keep compiled kernels there: {reason}") from None
    return [made for one in recipes if (made := one.made()) is not None]


def _key(sources: Sequence[Path], target: str) -> str:
    """What an object file depends on: its sources, all headers, flags, torch and the CPU."""
    digest = hashlib.sha256()
    headers = {header for source in sources for header in source.parent.glob("*.h")}
    for file in (*sources, *sorted(headers)):
        digest.update(file.read_bytes())
    cpu = (compiler.instructions() or platform.processor()) if target == NATIVE else target
    for part in (*FLAGS, torch.__version__, sys.platform, platform.machine(), cpu):
        digest.update(part.encode() + b"\0")
    return digest.hexdigest()[:16]


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Only one process at a time; the lock falls with its holder."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _sweep(folder: Path) -> None:
    """Remove what builds that were killed left behind; who holds the lock is the only one."""
    for left in (*folder.glob("*.part"), *folder.glob("objects/*.part")):
        left.unlink(missing_ok=True)


def _build(
    recipes: Sequence[LibraryRecipe],
    chosen: CppCompiler,
    on_progress: OnProgress | None,
    *,
    anew: bool,
) -> None:
    began = time.perf_counter()
    headers = Path(torch.__file__).parent / "include"
    command = [*chosen.command, *FLAGS, *chosen.compile_flags, "-isystem", str(headers), "-c"]
    jobs = []
    for unit in (unit for one in recipes for unit in one.units):
        if anew or not unit.object.exists():
            source = unit.object.with_suffix(".cpp")
            source.write_text(unit.code())
            jobs.append(([*command, str(source)], unit.object))
    with _reporting(len(jobs), on_progress) as done:
        CompilerCalls(jobs).run(done)
        for one in recipes:
            _link(one, chosen)
            seconds = time.perf_counter() - began
            _write_note(one, chosen, seconds)
    if not chosen.parallel:
        sys.stderr.write(
            f"ridgeline: {shlex.join(chosen.command)} has no OpenMP that shares torch's threads: "
            "attention, norms and whole layers will run on one thread\n"
        )


def _write_note(one: LibraryRecipe, chosen: CppCompiler, seconds: float) -> None:
    made = Made(
        library=one.name,
        path=str(one.path),
        bytes=one.path.stat().st_size,
        compiler=chosen.version,
        flags=chosen.compile_flags,
        parallel=chosen.parallel,
        seconds=round(seconds, 1),
    )
    unfinished = one.note.with_suffix(".part")
    unfinished.write_bytes(msgspec.json.encode(made))
    unfinished.replace(one.note)


def _link(one: LibraryRecipe, chosen: CppCompiler) -> None:
    libraries = Path(torch.__file__).parent / "lib"
    command = [*chosen.command, "-shared", *(str(unit.object) for unit in one.units)]
    command += [*chosen.link_flags, f"-L{libraries}", "-ltorch_cpu", "-lc10"]
    mac = sys.platform == "darwin"
    beside = "@loader_path" if mac else "$ORIGIN"
    if mac:
        command += [f"-Wl,-install_name,@rpath/{one.path.name}", f"-Wl,-rpath,{libraries}"]
    else:
        command.append(f"-Wl,-soname,{one.path.name}")
    if one.needs is not None:
        command += [str(one.needs.path), f"-Wl,-rpath,{beside}"]
    CompilerCalls([(command, one.path)]).run(lambda: None)


@contextlib.contextmanager
def _reporting(total: int, on_progress: OnProgress | None) -> Iterator[Callable[[], None]]:
    """Count files; without `on_progress` standard error says how it goes, in one line."""
    count = 0

    def done() -> None:
        nonlocal count
        count += 1
        if on_progress is not None:
            on_progress(count, total)

    if on_progress is not None:
        on_progress(0, total)
        yield done
        return
    began = time.perf_counter()
    files = f"{total} file" if total == 1 else f"{total} files"
    sys.stderr.write(f"ridgeline: compiling CPU kernels ({files}, once per machine) … ")
    sys.stderr.flush()
    try:
        yield done
    except BaseException as error:
        sys.stderr.write("failed\n" if isinstance(error, Exception) else "stopped\n")
        raise
    sys.stderr.write(f"{time.perf_counter() - began:.0f} s\n")
