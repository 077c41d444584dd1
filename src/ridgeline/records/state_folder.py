"""Where a user's own state is kept: `$RIDGELINE_STATE`, or the desktop standard's state folder."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

VARIABLE = "RIDGELINE_STATE"


def state_folder(part: str, environment: Mapping[str, str] | None = None) -> Path:
    """The folder of one part of the program; it may not exist yet.

    >>> state_folder("launch", {"XDG_STATE_HOME": "/state"}).as_posix()
    '/state/ridgeline/launch'
    >>> state_folder("drill", {"RIDGELINE_STATE": "/here"}).as_posix()
    '/here/drill'
    """
    known = os.environ if environment is None else environment
    if known.get(VARIABLE):
        return Path(known[VARIABLE]) / part
    home = known.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(home) / "ridgeline" / part
