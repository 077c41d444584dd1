"""Memory that stays where it is: pages locked, and freed blocks kept for the next frame.

`mlockall(2)` with MCL_ONFAULT holds every page once it was touched, so that none is written to
swap or, as a page of a program file, read again; nothing is touched in advance, for libraries that
reserve address space without using it (CUDA's terabytes). glibc returns large blocks to the kernel
as they are freed and is given new pages, cleared one by one, for the next frame's: told not to
(mallopt(3)), a frame's arrays lie where the last frame's lay.
"""

from __future__ import annotations

import ctypes
import os
import platform
import resource
from pathlib import Path

from ridgeline import quantity
from ridgeline.records.realtime_run import SteadyMeasure

_MCL_CURRENT, _MCL_FUTURE, _MCL_ONFAULT = 1, 2, 4
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _MMAP_MAX = -1, -3, -4
"""glibc's numbers for `mallopt`."""
_RETAINED = {_MMAP_MAX: 0, _TRIM_THRESHOLD: -1}
_USUAL_BYTES = 2**25
"""Where glibc's own threshold ends up in a process that frees large blocks; a threshold that was
once set is not raised any more."""
_USUAL = {
    _MMAP_MAX: 65536,
    _MMAP_THRESHOLD: _USUAL_BYTES,
    _TRIM_THRESHOLD: 2 * _USUAL_BYTES,
}


class MemoryLock:
    """Holds the pages of this process in memory."""

    name = "memory lock"

    def __init__(self, root: Path = Path("/")) -> None:
        self._root = root
        self._locked = False
        self._said = "not asked for"

    def begin(self) -> None:
        """Lock what is there and what will come."""
        library = ctypes.CDLL(None, use_errno=True)
        if not hasattr(library, "mlockall"):
            self._said = "this system has no mlockall"
            return
        if _status_bytes(self._root, "VmLck") > 0:
            self._said = "the program has locked pages of its own: left as they are"
            return
        limit = _lock_limit_bytes()
        if limit is not None and not _may_lock_all(self._root):
            # Past the limit every later allocation would fail, not only the lock.
            self._said = (
                f"only {quantity.memory(limit)} may be locked: raise the limit (`ulimit -l "
                "unlimited`, `USER - memlock unlimited` in /etc/security/limits.conf, `docker run "
                "--ulimit memlock=-1`)"
            )
            return
        if library.mlockall(_MCL_CURRENT | _MCL_FUTURE | _MCL_ONFAULT) != 0:
            self._said = f"refused: {os.strerror(ctypes.get_errno())}"
            return
        self._locked = True
        self._said = "pages stay in memory once they were touched"

    def undo(self) -> None:
        """Unlock what `begin` locked."""
        if self._locked:
            ctypes.CDLL(None).munlockall()
            self._locked = False

    @property
    def measure(self) -> SteadyMeasure:
        """What is locked, or how it can be allowed."""
        granted = self._said.startswith("pages stay")
        return SteadyMeasure(name=self.name, granted=granted, detail=self._said)


class RetainedHeap:
    """Keeps freed blocks in the process."""

    name = "freed memory kept"

    def __init__(self) -> None:
        self._set = False
        self._said = "not asked for"

    def begin(self) -> None:
        """Neither map blocks apart nor trim the heap."""
        if platform.libc_ver()[0] != "glibc":
            self._said = "the C library is not glibc; its own settings hold"
            return
        self._set = _mallopt(_RETAINED)
        self._said = (
            "a frame's arrays lie where the last frame's lay" if self._set
            else "glibc refused the settings"
        )  # fmt: skip

    def undo(self) -> None:
        """Let glibc give memory back as it would have by now, and give back what is free."""
        if self._set:
            _mallopt(_USUAL)
            ctypes.CDLL(None).malloc_trim(0)
            self._set = False

    @property
    def measure(self) -> SteadyMeasure:
        """Whether the C library does so."""
        granted = self._said.startswith("a frame's")
        return SteadyMeasure(name=self.name, granted=granted, detail=self._said)


def _mallopt(settings: dict[int, int]) -> bool:
    """Did the C library take all of them?"""
    library = ctypes.CDLL(None)
    return all(library.mallopt(number, value) == 1 for number, value in settings.items())


def _lock_limit_bytes() -> int | None:
    """How much a process without the right to lock all may lock; None: no limit."""
    limit, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    return None if limit == resource.RLIM_INFINITY else limit


def _may_lock_all(root: Path) -> bool:
    """Whether CAP_IPC_LOCK (bit 14 of capabilities(7)) lifts the limit."""
    return bool(_status_word(root, "CapEff", base=16) & 1 << 14)


def _status_bytes(root: Path, key: str) -> int:
    return 1024 * _status_word(root, key)


def _status_word(root: Path, key: str, base: int = 10) -> int:
    """The first number of a line of /proc/self/status; 0 where there is none."""
    try:
        lines = (root / "proc/self/status").read_text().splitlines()
    except OSError:
        return 0
    for line in lines:
        if line.startswith(f"{key}:"):
            return int(line.split()[1], base)
    return 0
