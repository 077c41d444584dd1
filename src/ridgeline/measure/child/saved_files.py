"""A measured run is cut short, so what it saves must not replace what the user had.

Before `torch.save` (or a rename of something it wrote) overwrites a file, the old content is
copied into the session's `saved` folder, once for all processes that share it; files that were
not there before are noted too. When the run has ended, everything is put back (`guard/kept.py`).
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

from ridgeline.measure.guard.view import View
from ridgeline.patches import patch
from ridgeline.records.store import write_atomically


class SavedFiles:
    """Guards the files that one process writes with `torch.save`."""

    def __init__(self, folder: Path | None, view: View, timed: Callable[[float], None]) -> None:
        self._folder = folder  # None: the run may keep its files
        self._view = view
        self._timed = timed
        self._known: set[str] = set()
        self._pid = os.getpid()

    def install(self) -> None:
        """Patch `torch.save`, `os.replace` and `os.rename`."""
        patch("torch:save", self._guarded_save)
        patch("os:replace", self._guarded_rename)
        patch("os:rename", self._guarded_rename)

    def remember(self, path: str | os.PathLike[str]) -> None:
        """Keep the old content of `path`, once."""
        real = os.path.abspath(os.fspath(path))
        if self._folder is None or real in self._known or os.getpid() != self._pid:
            return
        if self._view.holds(real) or self._view.may_keep(real):
            return
        self._known.add(real)
        self._folder.mkdir(parents=True, exist_ok=True)
        entry = self._folder / hashlib.sha256(real.encode()).hexdigest()
        try:
            entry.mkdir()
        except FileExistsError:
            return  # a process beside this one kept the old content already
        if os.path.isfile(real):
            shutil.copy2(real, entry / "content")
        write_atomically(entry / "path.json", json.dumps(real).encode())

    def _guarded_save(self, original: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(original)
        def save(obj: Any, f: Any, *args: Any, **kwargs: Any) -> None:
            started = perf_counter()
            if isinstance(f, (str, os.PathLike)):
                self.remember(f)
            original(obj, f, *args, **kwargs)
            self._timed(perf_counter() - started)

        return save

    def _guarded_rename(self, original: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(original)
        def rename(src: Any, dst: Any, *args: Any, **kwargs: Any) -> None:
            named = isinstance(src, (str, os.PathLike)) and isinstance(dst, (str, os.PathLike))
            if named and os.path.abspath(os.fspath(src)) in self._known:
                self.remember(dst)
            original(src, dst, *args, **kwargs)

        return rename
