"""Files of lines that several processes append to, and that outlive a crash.

Each line is one write under a lock. One that a crash or a full disk cut short is cut away by
whoever writes next, and left out by whoever reads before. Where the disk has no room lines wait in
memory, in their order, and go out with the next one that fits: a run must not end because its log
cannot grow for a while.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

from ridgeline.errors import NO_ROOM, InputError
from ridgeline.records.overwriting import refuse_overwriting

T = TypeVar("T")

_NO_ENTRY = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
_BACK_BYTES = 2**12
"""How far back the end of the last whole line is looked for at a time."""


class AppendedFile:
    """Open for appending until closed."""

    def __init__(self, path: Path) -> None:
        refuse_overwriting(path)
        self._handle = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self._waiting = b""
        with self._alone():
            self._whole_bytes()

    def append(self, line: bytes, *, sync: bool = False) -> bool:
        """One line, without its end; false where it has to wait.

        Args:
            line: What to append.
            sync: On the disk when this returns.
        """
        self._waiting += line + b"\n"
        try:
            with self._alone():
                self._write()
            if sync:
                os.fsync(self._handle)
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            return False
        return True

    def close(self) -> None:
        """Nothing more will come."""
        os.close(self._handle)

    def _write(self) -> None:
        """What waits; what does not fit as a whole is taken back."""
        start = self._whole_bytes()
        written = 0
        try:
            while written < len(self._waiting):
                written += os.write(self._handle, self._waiting[written:])
        except OSError:
            whole = self._waiting.rfind(b"\n", 0, written) + 1
            os.ftruncate(self._handle, start + whole)
            self._waiting = self._waiting[whole:]
            raise
        self._waiting = b""

    def _whole_bytes(self) -> int:
        """The file's size, once half a line at its end is cut away."""
        size = end = os.fstat(self._handle).st_size
        while end:
            start = max(0, end - (1 if end == size else _BACK_BYTES))
            newline = os.pread(self._handle, end - start, start).rfind(b"\n")
            if newline >= 0:
                end = start + newline + 1
                break
            end = start
        if end < size:
            os.ftruncate(self._handle, end)
        return end

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """No other writer; a file system without locks has one writer, or takes its chances."""
        with suppress(OSError):
            fcntl.flock(self._handle, fcntl.LOCK_EX)
        try:
            yield
        finally:
            with suppress(OSError):
                fcntl.flock(self._handle, fcntl.LOCK_UN)


class Tail(Generic[T]):
    """Reads what has been appended to a log since the last call."""

    def __init__(self, path: Path, decode: Callable[[bytes], T]) -> None:
        """Read the file at `path`, which need not be there yet.

        Args:
            path: Of the log.
            decode: Of one line; raises `msgspec.MsgspecError` for what is none.
        """
        self._path, self._decode = path, decode
        self._offset = self._lines = 0

    def read(self) -> list[T]:
        """Every whole new line, in the order of writing; half a line at the end is left out.

        Raises:
            InputError: A line is not what this log has; names the line.
        """
        try:
            with self._path.open("rb") as file:
                if os.fstat(file.fileno()).st_size < self._offset:
                    self._offset = self._lines = 0  # begun anew
                file.seek(self._offset)
                whole, newline, _ = file.read().rpartition(b"\n")
        except FileNotFoundError:
            return []
        except OSError as error:
            raise InputError(f"{self._path}: {error.strerror or error}") from None
        found = []
        for number, line in enumerate(whole.split(b"\n"), start=self._lines + 1):
            if line.strip():
                found += self._entries(line, number)
        self._offset += len(whole) + len(newline)
        self._lines += whole.count(b"\n") + len(newline)
        return found

    def _entries(self, line: bytes, number: int) -> list[T]:
        try:
            return [self._decode(line)]
        except _NO_ENTRY as error:
            found = self._run_together(line)
            if not found:
                where = f"{self._path}, line {number}"
                raise InputError(
                    f"{where}: {error}: {line[:60]!r}; repair or remove the line"
                ) from None
            return found

    def _run_together(self, line: bytes) -> list[T]:
        """What stands behind the beginning of another entry, and that one where it is whole.

        Releases that did not cut half a line away went on in it.
        """
        start = line.find(b'{"', 1)
        while start > 0:
            second = self._tried(line[start:])
            if second:
                return self._tried(line[:start]) + second
            start = line.find(b'{"', start + 1)
        return []

    def _tried(self, part: bytes) -> list[T]:
        try:
            return [self._decode(part)]
        except _NO_ENTRY:
            return []


def read_lines(path: Path, decode: Callable[[bytes], T]) -> list[T]:
    """Every whole line of a log; none where there is no file. See `Tail`."""
    return Tail(path, decode).read()
