"""Files, directories of ranks and globs as `Trace`s, ranks in parallel: `load_traces(paths)`.

A thousand ranks do not fit in memory as columns, so `for_each_rank` analyses each rank in a worker
and brings home only the answer.
"""

from __future__ import annotations

import glob
import multiprocessing
import os
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from ridgeline.errors import ChildDied, InputError
from ridgeline.hardware.freed_memory import return_freed_memory
from ridgeline.records.overwriting import note_input
from ridgeline.trace.columns import Trace
from ridgeline.trace.formats import (
    folder_suffixes,
    format_of,
    fuller_form,
    looks_like_a_trace,
)
from ridgeline.trace.formats.ridgeline_export import is_export

_DIGITS = re.compile(r"(\d+)")
_BYTES_OF_A_WORKER = 1 << 18
"""Bytes of files, perhaps compressed, that take longer to read than a process to come up."""

Answer = TypeVar("Answer")


def load_traces(
    paths: str | Path | Sequence[str | Path],
    *,
    details: bool = False,
    cache: Path | None = None,
) -> list[Trace]:
    """Load the traces of files, directories and globs, in the order of their ranks' numbers.

    `details` adds shapes, call stacks and sequence numbers; `cache` is a folder for parsed columns.
    """
    given = [paths] if isinstance(paths, str | Path) else list(paths)
    return [
        trace
        for path in trace_files(given)
        for trace in read_traces(path, details=details, cache=cache)
    ]


def read_traces(path: Path, *, details: bool = False, cache: Path | None = None) -> list[Trace]:
    """Read one file of any known format: one trace, or one per GPU of an Nsight export."""
    read = format_of(path).read
    if cache is None:
        found = read(path, details)
    else:
        from ridgeline.trace.cache import cached

        found = cached(cache, path, read, details=details)
    return_freed_memory(max((trace.raw_bytes for trace in found), default=0))
    return found


def file_of(named: str) -> str:
    """The file of a trace by its name, which says the part where it is one of several in it."""
    return named if os.path.exists(named) else named.rpartition(" (")[0] or named


def _warn(line: str) -> None:
    warnings.warn(line, stacklevel=3)


def trace_files(given: Iterable[str | Path], *, tell: Callable[[str], None] = _warn) -> list[Path]:
    """The files that paths, directories and globs name; of folders without our own exports.

    `tell` is given a line for each export that is left out.

    Raises:
        InputError: one of them names no file.
    """
    found: list[Path] = []
    for each in given:
        path = Path(each)
        if path.is_dir():
            suffixes = folder_suffixes()
            named = (child for child in path.rglob("*") if child.name.endswith(suffixes))
            inside = [child for child in named if looks_like_a_trace(child)]
            if not inside:
                raise InputError(f"{path}: no trace in this folder ({', '.join(suffixes)})")
            found += _recorded(path, _once(inside, tell), tell)
        elif path.exists():
            found.append(path)
        else:
            matches = glob.glob(os.fspath(each), recursive=True)
            if not matches:
                raise InputError(f"{each}: there is no such file{_nearest(path)}")
            found += _recorded(path, [Path(match) for match in matches], tell)
    if not found:
        raise InputError("no trace was given; name files, a folder of ranks, or a glob")
    for path in found:
        note_input(path)
    return list(dict.fromkeys(found))


def _once(found: list[Path], tell: Callable[[str], None]) -> list[Path]:
    """The files without those that say less of a run than another one of them."""
    known, kept = set(found), []
    for path in found:
        fuller = fuller_form(path)
        if fuller in known:
            tell(f"{path}: left out: {fuller.name} is of the same run; name it to read it")
        else:
            kept.append(path)
    return kept


def _recorded(given: Path, found: list[Path], tell: Callable[[str], None]) -> list[Path]:
    """What profilers wrote, by number: an export beside the ranks that it is of is none of them."""
    exports = [path for path in found if is_export(path)]
    if len(exports) == len(found):
        raise InputError(f"{given}: nothing but exports of `ridgeline trace export`; name one")
    for path in exports:
        tell(f"{path}: left out: it is an export of `ridgeline trace export`; name it to read it")
    return sorted((path for path in found if path not in exports), key=_by_number)


def _by_number(path: Path) -> list[Any]:
    """Rank 10 after rank 9."""
    return [int(part) if part.isdecimal() else part for part in _DIGITS.split(os.fspath(path))]


def _nearest(path: Path) -> str:
    import difflib

    try:
        names = os.listdir(path.parent)
    except OSError:
        return f": the folder {path.parent} is not there either"
    near = difflib.get_close_matches(path.name, names, n=1)
    return f"; did you mean {path.parent / near[0]}?" if near else ""


def for_each_rank(
    paths: Sequence[Path],
    question: Callable[[Trace], Answer],
    *,
    details: bool = False,
    cache: Path | None = None,
) -> Iterator[Answer]:
    """Ask every trace, in order; large files are read side by side in processes of their own.

    `question` must be a function of a module, or a partial of one: it travels to the workers.
    """
    ask = partial(_ask, question=question, details=details, cache=cache)
    worth_bytes = sum(path.stat().st_size for path in paths if path.exists())
    num_workers = min(len(paths), _usable_cores(), worth_bytes // _BYTES_OF_A_WORKER)
    if num_workers < 2:
        for path in paths:
            yield from ask(path)
        return
    # Forked workers share what is imported; we have started no threads.
    method = "fork" if "fork" in multiprocessing.get_all_start_methods() else "spawn"
    context = multiprocessing.get_context(method)
    with ProcessPoolExecutor(num_workers, mp_context=context) as pool:
        try:
            for answers in pool.map(ask, paths):
                yield from answers
        except BrokenProcessPool:
            raise ChildDied(
                "a process that read a trace was killed, perhaps for memory; give fewer files"
            ) from None


def _ask(
    path: Path, *, question: Callable[[Trace], Answer], details: bool, cache: Path | None
) -> list[Answer]:
    return [question(trace) for trace in read_traces(path, details=details, cache=cache)]


def _usable_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
