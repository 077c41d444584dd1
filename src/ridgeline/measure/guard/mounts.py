"""Which filesystems a process sees, and over which folders a view of them is laid.

mountinfo (proc(5)) comes in as text, folders through a function.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass

NEVER = ("/proc", "/sys", "/dev", "/run", "/boot")
"""Folders of the kernel, of devices and shared memory, of other programs' sockets."""
_NOT_FILES = frozenset(
    {
        "autofs", "binfmt_misc", "bpf", "cgroup", "cgroup2", "configfs", "debugfs", "devpts",
        "devtmpfs", "efivarfs", "fusectl", "hugetlbfs", "mqueue", "nsfs", "proc", "pstore",
        "ramfs", "rpc_pipefs", "securityfs", "selinuxfs", "squashfs", "sysfs", "tracefs",
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """A line of mountinfo."""

    number: int
    parent: int
    point: str
    kind: str
    writable: bool

    @property
    def holds_files(self) -> bool:
        """Could a user's files be written here?"""
        return self.writable and self.kind not in _NOT_FILES


@dataclass(frozen=True, slots=True, kw_only=True)
class Cover:
    """A folder to lay a view over, and what shows through it as it really is."""

    folder: str
    shown: tuple[str, ...]


def parse(text: str) -> list[Mount]:
    """The mounts of a mountinfo that can be seen: none that lies under another."""
    known: list[Mount] = []
    for line in text.splitlines():
        left, _, right = line.partition(" - ")
        fields, (kind, _, options) = left.split(), right.split(" ", 2)
        known.append(
            Mount(
                number=int(fields[0]),
                parent=int(fields[1]),
                point=_plain(fields[4]),
                kind=kind,
                writable="rw" in fields[5].split(",") and "rw" in options.split(","),
            )
        )
    numbers = {one.number for one in known}
    seen: list[Mount] = []
    for root in known:
        if root.parent not in numbers or root.parent == root.number:
            _visit(root, known, seen)
    return sorted(seen, key=lambda one: one.point)


def _visit(mount: Mount, known: list[Mount], seen: list[Mount]) -> None:
    children = [one for one in known if one.parent == mount.number and one is not mount]
    over = [one for one in children if one.point == mount.point]
    if over:
        _visit(over[-1], known, seen)
        return
    seen.append(mount)
    for child in children:
        others = (one.point for one in children if one is not child)
        if not any(is_below(child.point, other) for other in others):
            _visit(child, known, seen)


def _plain(escaped: str) -> str:
    for code, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        escaped = escaped.replace(code, character)
    return escaped


def is_below(path: str, folder: str) -> bool:
    """Does `path` lie in `folder`, at any depth?"""
    return path != folder and path.startswith(folder.rstrip("/") + "/")


def is_within(path: str, folder: str) -> bool:
    """Is `path` the folder, or in it?"""
    return path == folder or is_below(path, folder)


def lay_out(
    mounts: list[Mount],
    folders_in: Callable[[str], Iterable[str]],
    *,
    roots: Iterable[str] = ("/",),
    shown: Iterable[str],
    may_uncover: bool,
) -> list[Cover]:
    """Cover every filesystem that holds files, in as few overlays as the kernel permits.

    Covers come with those above before those below. Where a folder cannot be covered because of
    mounts in it, the folders in it are, and its own entries are not.

    Args:
        mounts: From `parse`.
        folders_in: The folders in a folder, no links; empty where it may not be read.
        roots: Where to begin; all that lies in them is covered, each by overlays of its own.
        shown: Folders and files that show through as they are.
        may_uncover: May an overlay take a folder with other mounts in it? Not in a user
            namespace: what lies under a mount made by root could be looked at so. The root
            directory can never be covered itself; the folders in it are.
    """
    real = tuple(shown)
    roots = tuple(roots)
    points = {one.point: one for one in mounts}
    covers: list[str] = []

    def cover(folder: str) -> None:
        if folder in covers or any(is_within(folder, other) for other in real):
            return
        mount = points.get(folder)
        if mount is not None and (mount.kind in _NOT_FILES or not os.path.isdir(folder)):
            return
        below = [point for point in points if is_below(point, folder)]
        covered = mount or _holding(folder, points)
        if folder != "/" and (may_uncover or not below):
            if covered is None or covered.holds_files:
                covers.append(folder)
            for point in _outermost(below):
                cover(point)
            return
        for name in sorted(folders_in(folder)):
            cover(os.path.join(folder, name))

    for root in roots:
        cover(root)
    through: dict[str, list[str]] = {folder: [] for folder in covers}
    for path in sorted({*points, *real, *roots}):
        holders = [folder for folder in covers if is_below(path, folder)]
        if holders:
            through[max(holders, key=len)].append(path)
    return [
        Cover(folder=folder, shown=tuple(_outermost(through[folder]))) for folder in sorted(covers)
    ]


def _holding(folder: str, points: dict[str, Mount]) -> Mount | None:
    over = [point for point in points if is_within(folder, point)]
    return points[max(over, key=len)] if over else None


def _outermost(paths: Iterable[str]) -> list[str]:
    kept: list[str] = []
    for path in sorted(set(paths)):
        if not any(is_below(path, other) for other in kept):
            kept.append(path)
    return kept
