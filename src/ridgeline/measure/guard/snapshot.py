"""Is everything as it was? Sizes and times of the files in a folder before and after."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable

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
