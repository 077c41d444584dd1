"""Which line of the user's own code are we in? Frames of libraries and of Ridgeline are skipped."""

from __future__ import annotations

import os
import sys
import sysconfig
from functools import lru_cache
from types import FrameType

from ridgeline.records import Site

_PATHS = sysconfig.get_paths()
_LIBRARIES = tuple(
    os.path.realpath(_PATHS[key]) + os.sep for key in ("stdlib", "platstdlib", "purelib", "platlib")
)
_INSTALLED = frozenset({"site-packages", "dist-packages"})
"""Folders of libraries beside the interpreter's own: of the system, or of another environment."""
_RIDGELINE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__)))) + os.sep


@lru_cache(maxsize=4096)
def is_user_file(path: str) -> bool:
    """Is this file the user's: not installed, not frozen, not ours?"""
    if path.startswith("<"):
        return False
    real = os.path.realpath(path)
    if real.startswith((*_LIBRARIES, _RIDGELINE)):
        return False
    return _INSTALLED.isdisjoint(real.split(os.sep))


def user_site(frame: FrameType | None = None) -> Site | None:
    """The innermost frame of the user's own code, from `frame` (default: the caller) outwards."""
    frame = frame or sys._getframe(1)
    while frame is not None:
        if is_user_file(frame.f_code.co_filename):
            return site_of(frame)
        frame = frame.f_back
    return None


def site_of(frame: FrameType) -> Site:
    """File (as it would be typed from the working directory), line and function of a frame."""
    return Site(
        file=shown(frame.f_code.co_filename),
        line=frame.f_lineno,
        function=frame.f_code.co_qualname,
    )


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
