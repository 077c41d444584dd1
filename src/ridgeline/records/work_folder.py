"""A folder that one process at a time works in: the lock is the folder's own and ends with it."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ridgeline.errors import InputError


@contextmanager
def held(work: Path, out: Path) -> Iterator[None]:
    """Within, `work` exists and no other process is at it; what lies in it is left as it is.

    It goes at the end if it is empty then.

    Args:
        work: Where everything lies until it is whole.
        out: The user's `--out`, for messages.

    Raises:
        InputError: Another process holds it, or it cannot be made.
    """
    descriptor = _locked(work, out)
    try:
        yield
    finally:
        with suppress(OSError):  # it is not empty, or was moved to its place
            work.rmdir()
        os.close(descriptor)


def _locked(work: Path, out: Path) -> int:
    while True:
        try:
            work.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(work, os.O_RDONLY | os.O_DIRECTORY)
        except OSError as error:
            raise InputError(f"--out {out}: {error.strerror}: {error.filename}") from None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            raise InputError(
                f"--out {out}: another process is writing it, in {work}; wait until that has"
                " ended, or give another name"
            ) from None
        if _is_still(work, descriptor):
            return descriptor
        os.close(descriptor)  # whoever held it removed it meanwhile


def _is_still(work: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(work.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def empty(work: Path) -> None:
    """Remove what a killed process left in a held folder, and keep the folder."""
    for one in work.iterdir():
        if one.is_dir() and not one.is_symlink():
            shutil.rmtree(one)
        else:
            one.unlink()
