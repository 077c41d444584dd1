"""Where a script runs: what it shares with other programs, and what belongs to its user."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ridgeline.measure.guard.mounts import is_below, is_within

_DOWNLOAD_VARIABLES = (
    "XDG_CACHE_HOME", "HF_HOME", "HF_HUB_CACHE", "HF_DATASETS_CACHE", "TORCH_HOME", "KERAS_HOME",
    "NLTK_DATA",
)  # fmt: skip
_DOWNLOADS_AT_HOME = (".cache", ".keras", "nltk_data")
_CODE_VARIABLES = (
    "TORCHINDUCTOR_CACHE_DIR", "TORCH_EXTENSIONS_DIR", "TRITON_HOME", "TRITON_CACHE_DIR",
    "CUDA_CACHE_PATH", "NUMBA_CACHE_DIR", "PYTHONPYCACHEPREFIX",
)  # fmt: skip
_CODE_AT_HOME = (".triton", ".nv")
_MOST_SPECIAL_FILES = 200
_MOST_LOOKED_AT = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnFolders:
    """What can be covered for a user who is not root."""

    roots: tuple[str, ...]
    foreign: tuple[str, ...]
    """In them, but shared with others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """Folders that matter to one run; real paths."""

    cwd: str
    """Where the script runs."""
    session: str
    """What the conductor and the script share."""
    near: tuple[str, ...] = ()
    """Folders of the script's own files."""

    def caches(self) -> Iterator[str]:
        """What is kept from one run to the next: compiled code, downloads of hubs, the session.

        A folder that holds the working folder or the home is none of these, whatever a variable
        says.
        """
        yield self.session
        yield from self.downloads()
        yield from self._folders(_CODE_VARIABLES, _CODE_AT_HOME, _compiled_code())

    def downloads(self) -> Iterator[str]:
        """Caches in which downloaded data lie: more may come, and none may be lost."""
        yield from self._folders(_DOWNLOAD_VARIABLES, _DOWNLOADS_AT_HOME)

    def _folders(
        self, variables: tuple[str, ...], names_at_home: tuple[str, ...], *others: str
    ) -> Iterator[str]:
        home = _home()
        named = [os.environ[name] for name in variables if os.environ.get(name)]
        at_home = [os.path.join(home, name) for name in names_at_home]
        for path in (*named, *others, *at_home):
            real = os.path.realpath(path)
            if os.path.isdir(real) and not any(is_within(one, real) for one in (self.cwd, home)):
                yield real

    def own_folders(self) -> OwnFolders:
        """What to cover for a user who is not root, and what in it has to show through.

        In a user namespace there is one owner and one group; an overlay fails to write (with
        "Value too large") where an entry, or a folder on the way to it, has another. So covers
        begin where that does not happen, and what is shared with a group shows through. To be
        asked outside of the namespace: in it, all that is another's looks like nobody's.
        """
        temporary = {os.path.realpath(one) for one in (tempfile.gettempdir(), "/tmp", "/var/tmp")}  # noqa: S108 - found, not used
        wanted = [_outermost_own(one) for one in (self.cwd, *self.near, _home())]
        roots: list[str] = []
        for one in sorted({*wanted, *(path for path in temporary if os.access(path, os.W_OK))}):
            above = [root for root in roots if is_within(one, root)]
            if not above or not all(map(_is_own, _between(max(above, key=len), one))):
                roots.append(one)
        foreign = [path for root in temporary for path in _foreign_in(root, depth=1)]
        for root in (self.cwd, *self.near):
            foreign += _foreign_in(root, depth=30)
        apart = [path for path in foreign if not any(is_within(root, path) for root in roots)]
        return OwnFolders(roots=tuple(roots), foreign=tuple(apart))


def special_files() -> Iterator[str]:
    """Sockets and pipes of running programs (a display, an agent): they must be the real ones."""
    top = os.path.realpath(tempfile.gettempdir())
    looked_at = found = 0
    folders = [top]
    for folder in folders:
        for path, mode in _entries(folder):
            looked_at += 1
            if found >= _MOST_SPECIAL_FILES or looked_at > _MOST_LOOKED_AT:
                return
            if stat.S_ISSOCK(mode.st_mode) or stat.S_ISFIFO(mode.st_mode):
                found += 1
                yield path
            elif stat.S_ISDIR(mode.st_mode) and folder == top:
                folders.append(path)


def _compiled_code() -> str:
    """Where torch keeps compiled code unless told otherwise; made as torch makes it."""
    import getpass

    try:
        user = getpass.getuser()
    except (OSError, KeyError):
        user = str(os.getuid())
    name = "".join("_" if letter in '\\/:*?"<>|' else letter for letter in user)
    path = os.path.join(tempfile.gettempdir(), f"torchinductor_{name}")
    if "TORCHINDUCTOR_CACHE_DIR" not in os.environ:
        Path(path).mkdir(exist_ok=True)
    return path


def _home() -> str:
    return os.path.realpath(os.path.expanduser("~"))


def _is_own(path: str) -> bool:
    found = os.stat(path)
    return (found.st_uid, found.st_gid) == (os.getuid(), os.getgid())


def _outermost_own(path: str) -> str:
    """The folder, or the highest above it down from which all are the user's own."""
    while path != "/" and _is_own(path) and _is_own(os.path.dirname(path)):
        path = os.path.dirname(path)
    return path


def _between(above: str, below: str) -> list[str]:
    """The folders from the one above (not with it) to the one below (with it)."""
    found = []
    while is_below(below, above):
        found.append(below)
        below = os.path.dirname(below)
    return found


def _foreign_in(root: str, *, depth: int) -> list[str]:
    """What the user may write to in a folder although it has another owner or group."""
    found: list[str] = []
    looked_at = 0
    folders = [(root, depth)]
    for folder, left in folders:
        for path, entry in _entries(folder):
            looked_at += 1
            if looked_at > _MOST_LOOKED_AT:
                return found
            if stat.S_ISLNK(entry.st_mode):
                continue
            if (entry.st_uid, entry.st_gid) != (os.getuid(), os.getgid()):
                if os.access(path, os.W_OK):
                    found.append(path)
            elif stat.S_ISDIR(entry.st_mode) and left > 1:
                folders.append((path, left - 1))
    return found


def _entries(folder: str) -> Iterator[tuple[str, os.stat_result]]:
    try:
        entries = list(os.scandir(folder))
    except OSError:
        return
    for entry in entries:
        try:
            yield entry.path, entry.stat(follow_symlinks=False)
        except OSError:
            continue  # it was removed meanwhile
