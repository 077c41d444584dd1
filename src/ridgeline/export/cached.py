"""Conversions that were made before, kept in the user's cache by what they depend on.

The key is made of the graph and its numbers (`reference.py`), the example's shapes, what stays
free, the precision, the processor, its instruction sets, the threads, and the versions of
everything that took part. Each entry has the hashes of its files: one that was damaged is thrown
away and made anew. What comes from the cache is compared with eager PyTorch like anything else.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path

import msgspec

from ridgeline.errors import InputError
from ridgeline.export.orders import ConvertAnswer
from ridgeline.hardware.ceilings import cache_folder
from ridgeline.hardware.environment import installed
from ridgeline.hardware.machine import this_machine
from ridgeline.records.store import read_record, write_record
from ridgeline.runtimes import RuntimeCard

LAYOUT = 3
"""Raise it when an entry changes its meaning: older ones are then not found."""
MOST_BYTES = 8 * 10**9
"""The oldest entries beyond this go."""
_ENTRY = "entry.json"


class CachedConversion(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One entry of the cache."""

    converted: ConvertAnswer
    files: dict[str, str]
    """File → its SHA-256."""


def key_of(card: RuntimeCard, digest: str, precision: str, fix: str, threads: int) -> str:
    """The name of an entry.

    Args:
        card: Of the runtime.
        digest: Of graph, weights, shapes and calibration.
        precision: That it is converted to.
        fix: What does not stay free.
        threads: Of the machine, which compiled code may be made for.
    """
    cpu = this_machine(gpus=[]).cpu
    packages = {"torch", "ridgeline", *card.needs}
    parts = [LAYOUT, card.name, digest, precision, fix, threads, cpu.model, *cpu.isa]
    parts += [f"{name}=={installed(name)}" for name in sorted(packages)]
    return hashlib.sha256("\n".join(map(str, parts)).encode()).hexdigest()[:24]


def _folder() -> Path:
    return cache_folder() / "exports"


def take(key: str, to: Path) -> tuple[ConvertAnswer | None, str]:
    """Copy an entry to `to`, which must not exist.

    Returns:
        What its conversion said, or None; and a line where an entry was there and damaged.
    """
    entry = _folder() / key
    if not (entry / _ENTRY).is_file():
        return None, ""
    try:
        found = read_record(entry / _ENTRY, CachedConversion, ours=True)
        shutil.copytree(entry, to, ignore=shutil.ignore_patterns(_ENTRY))
        if _hashes(to) == found.files:
            os.utime(entry)
            return found.converted, ""
    except (InputError, OSError):
        pass  # as damaged as one whose hashes differ
    shutil.rmtree(entry, ignore_errors=True)
    shutil.rmtree(to, ignore_errors=True)
    return None, "the cached conversion was damaged, and made anew"


def keep(key: str, made: Path, converted: ConvertAnswer) -> None:
    """Put a conversion into the cache; where there is no room, it is not kept."""
    entry = _folder() / key
    aside = entry.with_name(f".{key}.{os.getpid()}")
    try:
        shutil.copytree(made, aside)
        kept = CachedConversion(converted=converted, files=_hashes(made))
        write_record(aside / _ENTRY, kept)
        shutil.rmtree(entry, ignore_errors=True)
        os.replace(aside, entry)
        _make_room()
    except OSError:
        pass  # a full disk, or another job that was faster: the export itself is whole
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _make_room() -> None:
    entries = sorted(
        (one for one in _folder().iterdir() if one.is_dir()), key=lambda one: one.stat().st_mtime
    )
    sizes = [sum(file.stat().st_size for file in one.rglob("*")) for one in entries]
    for entry, size in zip(entries[:-1], sizes, strict=False):
        if sum(sizes) <= MOST_BYTES:
            return
        shutil.rmtree(entry, ignore_errors=True)
        sizes = [*sizes, -size]


def _hashes(folder: Path) -> dict[str, str]:
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.name != _ENTRY:
            with path.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            found[str(path.relative_to(folder))] = digest
    return found
