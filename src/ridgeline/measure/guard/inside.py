"""What a process of the run does for the user's files before its first line: see `keep.py`."""

from __future__ import annotations

import json
from pathlib import Path

from ridgeline.measure.guard.keep import Keeper, watch
from ridgeline.measure.guard.offline import stay_at_home
from ridgeline.measure.guard.view import SESSION_NAME, VIEW_NAME, View
from ridgeline.measure.guard.writers import watch_writers

_keepers: dict[str, Keeper] = {}


def keeper_of(session_folder: str) -> Keeper | None:
    """This process's keeper for a session, watching; None where files may be written."""
    if session_folder not in _keepers:
        session = json.loads(Path(session_folder, SESSION_NAME).read_bytes())
        if not session.get("report", True) or not session.get("saved_folder"):
            return None
        noted = Path(session_folder, VIEW_NAME)
        view = View.read(noted) if noted.exists() else View(caches=(session_folder,))
        keeper = Keeper(Path(session["saved_folder"]), view)
        _keepers[session_folder] = keeper
        watch(keeper)
        watch_writers(keeper)
        stay_at_home(Path(session_folder))
    return _keepers[session_folder]
