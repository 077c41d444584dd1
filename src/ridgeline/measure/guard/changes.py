"""What a script wrote into its view: read from the layers before they are dropped."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass

from ridgeline.measure.guard.mounts import is_within
from ridgeline.measure.guard.view import FileView

FIRST = 8
"""So many names are given."""
_MOST = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """Files that were written, changed or removed."""

    count: int
    first: tuple[str, ...]
    """Some of their paths, those near the working folder first."""

    def and_also(self, paths: list[str]) -> Changes:
        """These changes, and others."""
        first = tuple(dict.fromkeys([*self.first, *paths]))[:FIRST]
        return Changes(count=self.count + len(paths), first=first)


def changes_in(view: FileView, cwd: str) -> Changes:
    """What the layers of a view hold, without bytecode and a temporary folder's own litter."""
    temporary = os.path.realpath(tempfile.gettempdir())
    near: list[str] = []
    far: list[str] = []
    for covered in view.covered:
        for number, path in enumerate(_entries(covered.folder, covered.layer)):
            if number >= _MOST:
                break
            if is_within(path, cwd):
                near.append(path)
            elif not is_within(path, temporary) or os.path.lexists(path):
                far.append(path)
    return Changes(count=len(near) + len(far), first=tuple([*sorted(near), *sorted(far)][:FIRST]))


def _entries(folder: str, layer: str) -> Iterator[str]:
    """Real paths of the files in a layer, and of what a mark in it says was removed."""
    upper = os.path.join(layer, "upper")
    for place, folders, names in os.walk(upper):
        folders[:] = [name for name in folders if name != "__pycache__"]
        for name in names:
            real = os.path.join(folder, os.path.relpath(os.path.join(place, name), upper))
            real = os.path.normpath(real)
            if name.endswith(".pyc") or name == "__pycache__":
                continue
            if _is_mark(os.path.join(place, name)) and not os.path.lexists(real):
                continue  # made and removed again
            yield real


def _is_mark(path: str) -> bool:
    """Overlayfs marks what was removed by a character device 0:0."""
    try:
        found = os.lstat(path)
    except OSError:
        return False
    return stat.S_ISCHR(found.st_mode) and found.st_rdev == 0


def drop(place: str) -> None:
    """Remove layers; the kernel left a folder in them that not even its owner may enter."""
    for folder, names, _ in os.walk(place):
        for name in names:
            if not os.path.islink(path := os.path.join(folder, name)):
                with contextlib.suppress(OSError):
                    os.chmod(path, 0o700)
    shutil.rmtree(place, ignore_errors=True)
