"""The kernel's calls that give a process its own view of files and processes; Linux only.

unshare(2), mount(2), open_tree(2), move_mount(2), prctl(2), user_namespaces(7).
"""

from __future__ import annotations

import ctypes
import os
import signal
from pathlib import Path

NEW_MOUNTS = 0x00020000
NEW_USER = 0x10000000
NEW_PIDS = 0x20000000

_MS_NOSUID, _MS_NODEV, _MS_NOEXEC = 2, 4, 8
_MS_REC, _MS_PRIVATE = 0x4000, 0x40000
_MNT_DETACH = 2
_AT_FDCWD = -100
_AT_RECURSIVE = 0x8000
_OPEN_TREE_CLONE = 1
_MOVE_MOUNT_FROM_IS_EMPTY = 4
_SYS_OPEN_TREE, _SYS_MOVE_MOUNT = 428, 429  # of every architecture since these numbers
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


def unshare(flags: int) -> None:
    """Leave the namespaces that `flags` names; NEW_PIDS is for children only.

    Raises:
        OSError: the kernel does not permit it.
    """
    _check(_libc().unshare(flags), "unshare")


def map_own_ids(uid: int, gid: int) -> None:
    """In a new user namespace: be who one was, so that nothing looks different."""
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
    Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")


def keep_mounts_to_oneself() -> None:
    """What is mounted from now on is not seen outside."""
    _check(_libc().mount(None, b"/", None, _MS_REC | _MS_PRIVATE, None), "mount --make-rprivate /")


def mount_overlay_here(upper: str, work: str, options: str) -> None:
    """An overlay over the current directory: what is written to it goes to `upper`."""
    data = f"{options}lowerdir=.,upperdir={upper},workdir={work}"
    call = _libc().mount(b"ridgeline", b".", b"overlay", 0, data.encode())
    _check(call, f"overlay on {Path.cwd()}")


def unmount(folder: str) -> None:
    """Take off what is mounted there, at once for all who look from now on."""
    _check(_libc().umount2(os.fsencode(folder), _MNT_DETACH), f"umount {folder}")


def mount_proc() -> None:
    """The processes of this namespace in /proc."""
    flags = _MS_NOSUID | _MS_NODEV | _MS_NOEXEC
    _check(_libc().mount(b"proc", b"/proc", b"proc", flags, None), "proc on /proc")


def take_tree(path: str) -> int:
    """What is mounted at `path` and below, as a file descriptor that can be placed again."""
    flags = _OPEN_TREE_CLONE | _AT_RECURSIVE | os.O_CLOEXEC
    call = _libc().syscall(_SYS_OPEN_TREE, _AT_FDCWD, ctypes.c_char_p(os.fsencode(path)), flags)
    return _check(call, f"open_tree {path}")


def place_tree(tree: int, path: str) -> None:
    """Put at `path` what `take_tree` took, and close the descriptor."""
    call = _libc().syscall(
        _SYS_MOVE_MOUNT,
        tree,
        ctypes.c_char_p(b""),
        _AT_FDCWD,
        ctypes.c_char_p(os.fsencode(path)),
        _MOVE_MOUNT_FROM_IS_EMPTY,
    )
    _check(call, f"move_mount {path}")
    os.close(tree)


def end_with_parent() -> None:
    """Be killed when the parent ends, even while frozen. Has it ended before? Look after."""
    _libc().prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def adopt_orphans() -> None:
    """Descendants whose parents end become children of this process, not of init."""
    _libc().prctl(_PR_SET_CHILD_SUBREAPER, 1)


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result
