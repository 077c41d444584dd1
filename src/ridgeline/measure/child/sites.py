"""Which line of the user's own code are we in? Frames of libraries and of Ridgeline are skipped."""

from __future__ import annotations

import os
import sys
import sysconfig
from functools import lru_cache
from types import FrameType

from ridgeline.records import Site

_PATHS = sysconfig.get_paths()
_STDLIB = tuple(
    dict.fromkeys(
        os.path.realpath(folder) + os.sep
        for folder in (_PATHS["stdlib"], _PATHS["platstdlib"], os.path.dirname(os.__file__))
    )
)
_INSTALLED = frozenset({"site-packages", "dist-packages"})
"""Folders in which libraries lie: of the interpreter, the system, or another environment in a
layer."""
_STORES = ("/nix/store/", "/gnu/store/", "/usr/lib/python", "/usr/lib64/python", "/usr/share/")
"""Folders that nobody writes code in."""
_TEMPORARY = os.path.realpath(os.environ.get("TMPDIR") or "/tmp") + os.sep  # noqa: S108
_RIDGELINE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__)))) + os.sep
_PROJECT_MARKS = ("pyproject.toml", "setup.py", "setup.cfg", ".hg")
"""One of these lies at the root of a project that is no git repository."""


@lru_cache(maxsize=4096)
def is_user_file(path: str) -> bool:
    """Is this file the user's?

    Not what is installed, frozen, generated, ours, or somebody else's: in a package store, beside
    torch, among packages with a record of their installation, or a checkout other than the project
    that is run (that of the script, or of the folder that the process started in).
    """
    if not path or path.startswith("<"):
        return False
    real = os.path.realpath(path)
    if real.startswith((*_STDLIB, _RIDGELINE)) or not _INSTALLED.isdisjoint(real.split(os.sep)):
        return False
    if _is_beside_torch(real) or _is_bazels(real) or _is_generated(real):
        return False
    root = project_root(os.path.dirname(real))
    if root is not None:
        return root in own_projects()
    return not (real.startswith(_STORES) or _is_among_installed(real))


def _is_beside_torch(real: str) -> bool:
    """Where `pip install --target` put torch are only libraries, unless torch is the project."""
    file = getattr(sys.modules.get("torch"), "__file__", None)
    if not file:
        return False
    folder = os.path.dirname(os.path.dirname(os.path.realpath(file))) + os.sep
    return real.startswith(folder) and not any(
        (own + os.sep).startswith(folder) for own in own_projects()
    )


def _is_generated(real: str) -> bool:
    """Did a library write it while the script ran?

    It lies right in the temporary folder then, from where neither the script nor anything else is
    imported, or in the compiler's cache there.
    """
    if not real.startswith(_TEMPORARY):
        return False
    if real.removeprefix(_TEMPORARY).startswith("torchinductor_"):
        return True
    folders = [START_FOLDER, *map(os.path.realpath, filter(None, sys.path))]
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    if main:
        folders.append(os.path.dirname(os.path.realpath(main)))
    folder = os.path.dirname(real)
    return folder + os.sep == _TEMPORARY and folder not in folders


def _is_bazels(real: str) -> bool:
    """Does it belong to an outside repository, in what Bazel lays out for a run?"""
    words = real.split(os.sep)
    for index, word in enumerate(words[:-1]):
        following = words[index + 1]
        if word == "external" and any(before.startswith("_bazel") for before in words[:index]):
            return True
        outside = following.startswith(("pip", "pypi")) or not {"~", "+"}.isdisjoint(following)
        if word.endswith(".runfiles") and outside:
            return True
    return False


def _is_among_installed(real: str) -> bool:
    """Does it lie in a folder of the import path in which packages were installed?"""
    return any(
        real.startswith(entry.rstrip(os.sep) + os.sep) and _holds_installed(entry)
        for entry in map(os.path.realpath, filter(None, sys.path))
    )


@lru_cache(maxsize=256)
def _holds_installed(folder: str) -> bool:
    try:
        return any(name.endswith((".dist-info", ".egg-info")) for name in os.listdir(folder))
    except OSError:  # an archive, or nothing at all
        return False


@lru_cache(maxsize=1)
def own_projects() -> frozenset[str]:
    """The roots of the project that is run: of the start folder, and of the script."""
    folders = [START_FOLDER]
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    if main:
        folders.append(os.path.dirname(os.path.realpath(main)))
    return frozenset(root for folder in folders if (root := project_root(folder)) is not None)


@lru_cache(maxsize=256)
def project_root(folder: str) -> str | None:
    """The repository that a folder lies in, or else the nearest project from it upwards."""
    nearest = None
    while True:
        if os.path.exists(os.path.join(folder, ".git")):
            return folder
        marks = (os.path.join(folder, mark) for mark in _PROJECT_MARKS)
        nearest = nearest or (folder if any(map(os.path.exists, marks)) else None)
        above = os.path.dirname(folder)
        if above == folder:
            return nearest
        folder = above


def user_site(frame: FrameType | None = None) -> Site | None:
    """The innermost frame of the user's own code, from `frame` (default: the caller) outwards."""
    frame = frame or sys._getframe(1)
    while frame is not None:
        if is_user_file(frame.f_code.co_filename):
            return site_of(frame)
        frame = frame.f_back
    return None


def site_at(path: str, line: int) -> Site | None:
    """A line of a file, if that file is the user's."""
    return Site(file=shown(path), line=line) if is_user_file(path) else None


def site_of(frame: FrameType) -> Site:
    """File (as it would be typed from the working directory), line and function of a frame."""
    return Site(
        file=shown(frame.f_code.co_filename),
        line=line_of(frame),
        function=frame.f_code.co_qualname,
    )


def line_of(frame: FrameType) -> int:
    """The line a frame is on; the first of its function where an instruction belongs to none."""
    line: int | None = frame.f_lineno
    return frame.f_code.co_firstlineno if line is None else line


@lru_cache(maxsize=4096)
def shown(path: str) -> str:
    """A file as it would be typed from the folder in which the process started."""
    real = os.path.realpath(path)
    relative = os.path.relpath(real, START_FOLDER)
    return as_text(real if relative.startswith("..") else relative)


def as_text(name: str) -> str:
    r"""A path that can be written down: file systems allow others.

    >>> as_text("caf\udce9.py")
    'caf?.py'
    """
    return name.encode(errors="replace").decode()


START_FOLDER = os.path.realpath(os.getcwd())
"""Where the process started; scripts may change directory later."""
