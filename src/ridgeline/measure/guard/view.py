"""A copy-on-write view of the user's files, for one process and all that it starts.

Every folder that could be written to is covered by an overlay (overlayfs of the Linux kernel) in
a mount namespace of the process's own: it reads what is there, and what it writes, renames or
removes goes to a layer that is dropped when it ends. Nobody else sees the view. Root may do this
as it is; others in a user namespace in which they stay who they are. Where neither is permitted
(Docker's default, some hardened kernels) there is no view, and `child/saved_files.py` does what
can be done from inside.

Caches show through: what a compiler or a hub's client keeps is kept between runs.
"""

from __future__ import annotations

import json
import os
import shutil
import stat
import tempfile
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from ridgeline.measure.guard import namespaces
from ridgeline.measure.guard.mounts import NEVER, Cover, is_within, lay_out, parse
from ridgeline.measure.guard.surroundings import OwnFolders, Surroundings, special_files

SESSION_NAME = "session.json"
"""In the session's folder: what the script's process shall do."""
VIEW_NAME = "view.json"
"""In the session's folder while the script runs in a view: what it covers."""
LAYERS_PREFIX = "ridgeline-layers-"
NOT_FILES = ("/proc", "/sys", "/dev/null", "/dev/pts", "/dev/tty")


@dataclass(frozen=True, slots=True, kw_only=True)
class Covered:
    """One overlay of a view, and the layer that takes what is written to it."""

    folder: str
    layer: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FileView:
    """Which of the files that a script writes are protected, and how."""

    covered: tuple[Covered, ...] = ()
    shown: tuple[str, ...] = ()
    """What shows through the covers as it is."""
    caches: tuple[str, ...] = ()
    """What the script may keep, and the session's folder."""
    downloads: tuple[str, ...] = ()
    """Caches of downloads, out of which it may not remove what was there."""

    def write(self, path: Path) -> None:
        """Write it down for the script's process and for the guardian."""
        path.write_text(json.dumps(asdict(self)))

    @classmethod
    def read(cls, path: Path) -> FileView:
        """Read what `write` wrote."""
        found = json.loads(path.read_text())
        return cls(
            covered=tuple(Covered(**one) for one in found["covered"]),
            shown=tuple(found["shown"]),
            caches=tuple(found["caches"]),
            downloads=tuple(found["downloads"]),
        )

    def holds(self, path: str) -> bool:
        """Is what is written to `path` dropped at the end?"""
        over = [len(one.folder) for one in self.covered if is_within(path, one.folder)]
        through = [len(one) for one in self.shown if is_within(path, one)]
        return max(over, default=-1) >= max(through, default=0)

    def may_keep(self, path: str) -> bool:
        """Is `path` none of the user's files?"""
        return any(is_within(path, one) for one in (*self.caches, *NOT_FILES))

    def may_not_lose(self, path: str) -> bool:
        """Is `path` a download, and nobody's lock?"""
        is_lock = os.path.basename(path).lower().endswith("lock")
        return not is_lock and any(is_within(path, one) for one in self.downloads)


def leave_the_world(*, processes: bool) -> bool:
    """Give this process mounts of its own, and its children process ids of their own.

    Returns:
        Whether an overlay may take a folder with other mounts in it.

    Raises:
        OSError: neither root's way nor a user namespace is permitted.
    """
    flags = namespaces.NEW_MOUNTS | (namespaces.NEW_PIDS if processes else 0)
    uid, gid = os.getuid(), os.getgid()
    try:
        namespaces.unshare(flags)
        as_root = True
    except PermissionError:
        namespaces.unshare(flags | namespaces.NEW_USER)
        namespaces.map_own_ids(uid, gid)
        as_root = False
    namespaces.keep_mounts_to_oneself()
    return as_root


def build(
    places: Iterable[str], surroundings: Surroundings, own: OwnFolders, *, may_uncover: bool
) -> FileView:
    """Cover all that could be written to; the current directory is the script's in the view after.

    Args:
        places: Empty folders of ours that may hold the layers; the first that can is taken.
        surroundings: Where the script runs, and what it shares with others.
        own: Of the surroundings, found before the world was left.
        may_uncover: From `leave_the_world`.

    Raises:
        OSError: it is not permitted, or the working folder cannot be covered.
    """
    place, options = _place_for_layers(places)
    caches = tuple(surroundings.caches())
    shown = [*caches, *special_files(), *NEVER]
    roots = ["/"]
    if not may_uncover:
        roots = list(own.roots)
        shown += own.foreign
    covers = lay_out(
        parse(Path("/proc/self/mountinfo").read_text()),
        _folders_in,
        roots=roots,
        shown=shown,
        may_uncover=may_uncover,
    )
    holder = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        covered = _cover_all(covers, place, holder, options)
    finally:
        os.close(holder)
    os.chdir(surroundings.cwd)
    view = FileView(
        covered=tuple(covered),
        shown=tuple(path for cover in covers for path in cover.shown),
        caches=caches,
        downloads=tuple(surroundings.downloads()),
    )
    if not view.holds(surroundings.cwd):
        raise OSError(f"{surroundings.cwd} cannot be covered")
    return view


def _cover_all(covers: list[Cover], place: str, holder: int, options: str) -> list[Covered]:
    """Mount the overlays; a folder that cannot be covered is left out."""
    covered: list[Covered] = []
    for number, cover in enumerate(covers):
        layer = os.path.join(place, str(number))
        # Through the descriptor: the place itself may lie under a cover by now.
        opened = f"/proc/self/fd/{holder}/{number}"
        trees: list[tuple[int, str]] = []
        try:
            os.makedirs(f"{opened}/work")
            os.mkdir(f"{opened}/upper")
            os.chdir(cover.folder)
            _look_alike(f"{opened}/upper")
            for path in cover.shown:
                try:
                    trees.append((namespaces.take_tree(path), path))
                except FileNotFoundError:
                    continue  # it was removed meanwhile
            namespaces.mount_overlay_here(f"{opened}/upper", f"{opened}/work", options)
        except OSError:
            for tree, _ in trees:
                os.close(tree)
            continue
        for tree, path in trees:
            namespaces.place_tree(tree, path)
        covered.append(Covered(folder=cover.folder, layer=layer))
    return covered


def _look_alike(upper: str) -> None:
    """The folder that an overlay covers looks as its upper layer does."""
    here = os.stat(".")
    shutil.copystat(".", upper)
    if (here.st_uid, here.st_gid) != (os.getuid(), os.getgid()):
        try:
            os.chown(upper, here.st_uid, here.st_gid)
        except OSError:  # not ours to give away
            if not os.access(".", os.W_OK):
                os.chmod(upper, stat.S_IMODE(here.st_mode) & ~0o222)


def _place_for_layers(places: Iterable[str]) -> tuple[str, str]:
    """The first place on which overlays work whole, and the options that they need."""
    reason = "no place for its layers"
    for place in places:
        for number, options in enumerate(("redirect_dir=on,", "userxattr,")):
            try:
                _try_overlay(os.path.join(place, f"trial-{number}"), options)
            except OSError as error:
                reason = str(error)
                continue
            return place, options
    raise OSError(reason)


def _try_overlay(folder: str, options: str) -> None:
    """Make one and do in it what a poor upper filesystem cannot: replace a folder."""
    lower = os.path.join(folder, "lower")
    os.makedirs(os.path.join(lower, "old", "content"))
    os.mkdir(os.path.join(folder, "upper"))
    os.mkdir(os.path.join(folder, "work"))
    os.chdir(lower)
    namespaces.mount_overlay_here("../upper", "../work", options)
    try:
        os.chdir(lower)
        shutil.rmtree("old")
        os.mkdir("old")
        if os.listdir("old"):
            raise OSError(f"{folder}: a filesystem that cannot hold the layers of an overlay")
    finally:
        os.chdir("/")
        namespaces.unmount(lower)


def places_for_layers() -> list[str]:
    """Folders to try for the layers, made now; on disk first, then where there is most room."""
    homes = [tempfile.gettempdir(), "/var/tmp"]  # noqa: S108 - a folder with a random name in it
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    if os.path.isdir(cache):
        homes.append(cache)
    made = []
    for home in sorted(dict.fromkeys(homes), key=_preference):
        try:
            made.append(tempfile.mkdtemp(prefix=LAYERS_PREFIX, dir=home))
        except OSError:
            continue
    return made


def _preference(home: str) -> tuple[bool, int]:
    try:
        room = shutil.disk_usage(home).free
        mounts = parse(Path("/proc/self/mountinfo").read_text())
    except OSError:
        return True, 0
    over = [one for one in mounts if is_within(os.path.realpath(home), one.point)]
    in_memory = bool(over) and max(over, key=lambda one: len(one.point)).kind == "tmpfs"
    return in_memory, -room


def _folders_in(folder: str) -> list[str]:
    try:
        return [one.name for one in os.scandir(folder) if one.is_dir(follow_symlinks=False)]
    except OSError:
        return []
