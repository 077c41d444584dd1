"""What was kept of the user's files before a measured run changed them, and putting it back.

Each change has a folder of its own in the folder of what is kept, named by the hash of its path:

    note.json    when, the path, what stood there (`none`, `file`, `link`, `folder`; `download`: a
                 file in a cache, whose place another may take), or what was done to it (`moved`: a
                 folder was renamed; `rights`: mode or times were set)
    content      the old file, unless it was put aside in the folder that it lay in

Changes are undone from the latest to the first, so that names mean what they meant then.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import stat
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

NOTE_NAME = "note.json"
CONTENT_NAME = "content"
UNPROTECTED_NAME = "unprotected"
"""The file beside them with a line for each file whose content could not be kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """One change, noted before it was made."""

    nanoseconds: int
    path: str
    was: str
    aside: str = ""
    """Where the old file is, or the folder was moved to."""
    target: str = ""
    """What a link points to."""
    mode: int = 0
    times: tuple[int, int] = (0, 0)

    def write(self, entry: Path) -> None:
        """Whole or not at all."""
        draft = entry / "draft"
        draft.write_text(json.dumps(asdict(self)))
        draft.replace(entry / NOTE_NAME)


def put_back(folder: Path) -> list[str]:
    """Undo what a run changed, by the notes in its folder; returns the paths.

    What the run made and removed again is none of them.
    """
    entries = []
    for path in folder.glob(f"*/{NOTE_NAME}"):
        note = json.loads(path.read_bytes())
        entries.append((Note(**{**note, "times": tuple(note["times"])}), path.parent))
    restored: list[str] = []
    for note, entry in sorted(entries, key=lambda one: -one[0].nanoseconds):
        if note.was == "none" and not os.path.lexists(note.path):
            continue
        # What another has removed meanwhile cannot be put back, and must not keep the rest.
        with contextlib.suppress(OSError):
            _UNDO[note.was](note, entry)
        restored.append(note.path)
    shutil.rmtree(folder, ignore_errors=True)
    return sorted(set(restored))


def unprotected(folder: Path) -> list[str]:
    """What could not be kept, a line each; to be asked before `put_back`."""
    path = folder / UNPROTECTED_NAME
    return sorted(set(path.read_text().splitlines())) if path.exists() else []


def _undo_new(note: Note, _entry: Path) -> None:
    _remove(note.path)


def _undo_file(note: Note, entry: Path) -> None:
    if os.path.isdir(note.path) and not os.path.islink(note.path):
        _remove(note.path)
    os.makedirs(os.path.dirname(note.path), exist_ok=True)
    if note.aside:
        os.replace(note.aside, note.path)
        return
    try:
        os.replace(entry / CONTENT_NAME, note.path)
    except OSError:  # on another filesystem
        draft = f"{note.path}.ridgeline-restore"
        shutil.copy2(entry / CONTENT_NAME, draft)
        os.replace(draft, note.path)


def _undo_download(note: Note, entry: Path) -> None:
    if not os.path.lexists(note.path):
        _undo_file(note, entry)
    elif note.aside:
        _remove(note.aside)


def _undo_link(note: Note, _entry: Path) -> None:
    _remove(note.path)
    os.symlink(note.target, note.path)
    os.utime(note.path, ns=note.times, follow_symlinks=False)


def _undo_folder(note: Note, _entry: Path) -> None:
    if not os.path.isdir(note.path):
        _remove(note.path)
        os.mkdir(note.path)
    os.chmod(note.path, note.mode)
    os.utime(note.path, ns=note.times)


def _undo_moved(note: Note, _entry: Path) -> None:
    if os.path.isdir(note.aside):
        _remove(note.path)
        os.rename(note.aside, note.path)


def _undo_rights(note: Note, _entry: Path) -> None:
    os.chmod(note.path, note.mode)
    os.utime(note.path, ns=note.times)


def _remove(path: str) -> None:
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)


_UNDO: dict[str, Callable[[Note, Path], None]] = {
    "none": _undo_new,
    "file": _undo_file,
    "download": _undo_download,
    "link": _undo_link,
    "folder": _undo_folder,
    "moved": _undo_moved,
    "rights": _undo_rights,
}


_MOST = 20_000
_FIRST = 5
Snapshot = dict[str, tuple[int, int]]


def snapshot(folders: Iterable[str]) -> Snapshot:
    """Size and time of the files in some folders, of so many as can be looked at in no time."""
    found: Snapshot = {}
    waiting = sorted(set(folders))
    for folder in waiting:
        try:
            entries = list(os.scandir(folder))
        except OSError:
            continue
        for entry in entries:
            try:
                status = entry.stat(follow_symlinks=False)
            except OSError:
                continue
            if stat.S_ISDIR(status.st_mode):
                if entry.name not in (".git", "__pycache__"):
                    waiting.append(entry.path)
            elif not entry.name.endswith(".pyc"):
                found[entry.path] = (status.st_size, status.st_mtime_ns)
        if len(found) > _MOST:
            break
    return found


def differences(before: Snapshot, after: Snapshot) -> list[str]:
    """What is not as it was; nothing where there was too much to look at."""
    if max(len(before), len(after)) > _MOST:
        return []
    changed = sorted(path for path in {*before, *after} if before.get(path) != after.get(path))
    lines = [f"{path}: changed while the script ran, and not undone" for path in changed[:_FIRST]]
    if len(changed) > _FIRST:
        lines.append(f"and {len(changed) - _FIRST} more files changed")
    return lines
