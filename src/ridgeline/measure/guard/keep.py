"""From inside of a process: keep what a file was before its first change.

For where the kernel permits no view (`view.py`), and for the few folders that a view leaves out.
An audit hook (PEP 578) sees what Python code opens for writing, renames, removes and makes, in
every thread; libraries that write without Python are patched (`writers.py`) and call `before`
themselves. What a program that is not Python writes is not seen.

Keeping never raises in the user's process, and never fills a disk: what is about to be removed is
linked, a big file that is about to be written anew is moved aside, and a copy is only made where
there is plenty of room. What cannot be kept is said in one line.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from ridgeline.measure.guard.kept import CONTENT_NAME, UNPROTECTED_NAME, Note
from ridgeline.measure.guard.view import FileView

Change = Literal["anew", "within", "away", "moved"]
"""Written from its beginning; changed where it is; removed, or replaced by another; given another
name, under which it may be changed."""

_SMALL_BYTES = 16 * 2**20
"""A copy of so much takes less than a step."""
_SPARE_BYTES = 256 * 2**20
"""Room that is left on a disk at least."""
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


class Keeper:
    """Keeps old contents for one run; all of its processes share the folder."""

    def __init__(self, folder: Path, view: FileView) -> None:
        self._folder = folder
        self._view = view
        self._known: set[str] = set()
        self._new: set[str] = set()
        """Folders that the run made: all in them is new."""
        self._inside = threading.local()

    def before(self, path: object, change: Change, dir_fd: int = -1) -> None:
        """A file, a link or an empty folder is about to be changed."""
        self._guarded(self._before, path, change, dir_fd)

    def before_setting_rights(self, path: object, dir_fd: int = -1) -> None:
        """Mode or times are about to be set."""
        self._guarded(self._before_rights, path, dir_fd)

    def before_move(self, source: object, target: object, source_fd: int, target_fd: int) -> None:
        """Something is about to be renamed; what stands at its new name goes."""
        self._guarded(self._before_move, source, target, source_fd, target_fd)

    def _say(self, line: str) -> None:
        try:
            with (self._folder / UNPROTECTED_NAME).open("a") as file:
                file.write(f"{line}\n")
        except OSError:
            sys.stderr.write(f"ridgeline: not protected: {line}\n")

    # -- what is done about it -----------------------------------------------------------------

    def _guarded(self, act: Callable[..., None], path: object, *rest: Any) -> None:
        if getattr(self._inside, "busy", False):
            return  # our own files
        self._inside.busy = True
        try:
            act(path, *rest)
        except Exception as error:  # the user's process goes on, whatever it is
            self._say(f"{path}: {error}")
        finally:
            self._inside.busy = False

    def _before(self, path: object, change: Change, dir_fd: int) -> None:
        full = _full(path, dir_fd, follow=change != "away")
        if full is None or full in self._known:
            return
        if self._is_left_alone(full):
            if change in ("away", "moved"):
                self._keep_download(full)
            return
        self._known.add(full)
        entry = self._entry(full)
        if entry is None:
            return
        try:
            found = os.lstat(full)
        except FileNotFoundError:
            self._note(entry, full, "none")
            return
        if stat.S_ISLNK(found.st_mode):
            self._note(entry, full, "link", target=os.readlink(full), found=found)
        elif stat.S_ISDIR(found.st_mode):
            self._note(entry, full, "folder", found=found)
        elif stat.S_ISREG(found.st_mode):
            aside = _keep_file(full, found.st_size, entry, change)
            self._note(entry, full, "file", aside=aside)

    def _keep_download(self, full: str) -> None:
        """What a script removes from a cache, for all that it may put there."""
        if not self._view.may_not_lose(full) or self._view.holds(full) or not os.path.isfile(full):
            return
        self._known.add(full)
        entry = self._entry(full)
        if entry is not None and not os.path.islink(full):
            self._note(entry, full, "download", aside=_link(full, entry / CONTENT_NAME, entry))

    def _before_rights(self, path: object, dir_fd: int) -> None:
        full = _full(path, dir_fd, follow=True)
        if full is None or self._is_left_alone(full) or f"rights {full}" in self._known:
            return
        self._known.add(f"rights {full}")
        entry = self._entry(f"rights {full}")
        if entry is not None and os.path.exists(full):
            self._note(entry, full, "rights", found=os.stat(full))

    def _before_move(self, source: object, target: object, source_fd: int, target_fd: int) -> None:
        full = _full(source, source_fd, follow=False)
        to = _full(target, target_fd, follow=False)
        if full is None or to is None:
            return
        self._before(target, "away", target_fd)
        if not os.path.isdir(full) or os.path.islink(full):
            self._before(source, "moved", source_fd)
        elif not self._is_left_alone(full) or not self._is_left_alone(to):
            entry = self._entry(f"moved {full} {to} {time.time_ns()}")
            if entry is not None:
                self._note(entry, full, "moved", aside=to)
        if full in self._new:
            self._new.add(to)

    def made_folder(self, path: object, dir_fd: int) -> None:
        """A folder is about to be made."""
        full = _full(path, dir_fd, follow=False)
        if full is not None and not os.path.lexists(full):
            self.before(path, "away", dir_fd)
            self._new.add(full)

    def _is_left_alone(self, full: str) -> bool:
        if self._view.holds(full) or self._view.may_keep(full):
            return True
        above = os.path.dirname(full)
        while above not in self._new:
            if above == os.path.dirname(above):
                return False
            above = os.path.dirname(above)
        return True

    def _entry(self, name: str) -> Path | None:
        """The folder for a change; None: another process of the run has noted it."""
        entry = self._folder / hashlib.sha256(name.encode(errors="surrogateescape")).hexdigest()
        self._folder.mkdir(parents=True, exist_ok=True)
        try:
            entry.mkdir()
        except FileExistsError:
            return None
        return entry

    def _note(
        self,
        entry: Path,
        path: str,
        was: str,
        *,
        aside: str = "",
        target: str = "",
        found: os.stat_result | None = None,
    ) -> None:
        Note(
            nanoseconds=time.time_ns(),
            path=path,
            was=was,
            aside=aside,
            target=target,
            mode=stat.S_IMODE(found.st_mode) if found is not None else 0,
            times=(found.st_atime_ns, found.st_mtime_ns) if found is not None else (0, 0),
        ).write(entry)


def _keep_file(path: str, size: int, entry: Path, change: Change) -> str:
    """Keep a file's content; returns where it is, empty when it is in the entry.

    Raises:
        OSError: there is no room, or no right, to keep it.
    """
    content = entry / CONTENT_NAME
    if change == "away":
        return _link(path, content, entry)
    if size <= _SMALL_BYTES and _has_room(entry, size):
        shutil.copy2(path, content)
        return ""
    if change == "moved":
        return _link(path, content, entry)
    aside = _aside(path, entry)
    if change == "anew":
        if os.access(path, os.W_OK):  # else it will not be written
            os.rename(path, aside)
        return aside
    for kept in (str(content), aside):
        if _has_room(Path(kept).parent, size):
            shutil.copy2(path, kept)
            return "" if kept == str(content) else aside
    raise OSError(f"no room for a copy of its {size / 1e9:.1f} GB")


def _link(path: str, content: Path, entry: Path) -> str:
    try:
        os.link(path, content)
    except OSError:  # it lies on another filesystem
        aside = _aside(path, entry)
        os.link(path, aside)
        return aside
    return ""


def _aside(path: str, entry: Path) -> str:
    """A name on the filesystem that the file lies on, outside of what may be removed with it."""
    folder = os.path.dirname(path)
    device = os.stat(folder).st_dev
    while folder != "/":
        above = os.path.dirname(folder)
        if os.stat(above).st_dev != device or not os.access(above, os.W_OK):
            break
        folder = above
    return os.path.join(folder, f".ridgeline-kept-{entry.name[:16]}")


def _has_room(folder: Path, size: int) -> bool:
    return shutil.disk_usage(folder).free > 2 * size + _SPARE_BYTES


def _full(path: object, dir_fd: int, *, follow: bool) -> str | None:
    """The real path that an audit event means; None: not a path."""
    if isinstance(path, int) or path is None:
        return None
    text = os.fsdecode(path)  # type: ignore[arg-type]
    if text in ("", ":memory:"):
        return None
    if dir_fd >= 0 and not os.path.isabs(text):
        text = os.path.join(os.readlink(f"/proc/self/fd/{dir_fd}"), text)
    if follow:
        return os.path.realpath(text)
    folder, name = os.path.split(os.path.abspath(text))
    return os.path.join(os.path.realpath(folder), name)


# -- the audit hook ----------------------------------------------------------------------------


def _handlers(keeper: Keeper) -> dict[str, Callable[..., None]]:
    def opened(path: object, _mode: object, flags: int) -> None:
        if not isinstance(flags, int) or not flags & _WRITES:
            return
        keeper.before(path, "anew" if flags & os.O_TRUNC and flags & os.O_CREAT else "within")

    def removed(path: object, dir_fd: int) -> None:
        keeper.before(path, "away", dir_fd)

    def linked(source: object, target: object, source_fd: int, target_fd: int) -> None:
        keeper.before(source, "moved", source_fd)
        keeper.before(target, "away", target_fd)

    def rights(path: object, *rest: Any) -> None:
        last = rest[-1] if rest and isinstance(rest[-1], int) else -1
        keeper.before_setting_rights(path, last)

    def database(path: object) -> None:
        for ending in ("", "-journal", "-wal", "-shm"):
            if isinstance(path, (str, os.PathLike)) and not str(path).startswith("file:"):
                keeper.before(os.fspath(path) + ending, "within")

    return {
        "open": opened,
        "os.remove": removed,
        "os.rmdir": removed,
        "os.rename": keeper.before_move,
        "os.mkdir": lambda path, _mode, dir_fd: keeper.made_folder(path, dir_fd),
        "os.truncate": lambda path, _length: keeper.before(path, "within"),
        "os.link": linked,
        "os.symlink": lambda _source, target, dir_fd: keeper.before(target, "away", dir_fd),
        "os.chmod": rights,
        "os.utime": rights,
        "sqlite3.connect": database,
    }


def watch(keeper: Keeper) -> None:
    """From now on, and for as long as the process lives, keep what Python code changes."""
    handlers = _handlers(keeper)

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        handler = handlers.get(event)
        if handler is not None:
            try:
                handler(*arguments)
            except Exception as error:  # nothing of ours may reach the user's code
                sys.stderr.write(f"ridgeline: {event} was not looked at: {error}\n")

    sys.addaudithook(hook)
