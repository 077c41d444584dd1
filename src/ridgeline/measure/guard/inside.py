"""What a process of the run does for the user's files before its first line: see `keep.py`.

Writers in C++ and Rust, whom no audit hook sees, tell the keeper themselves.
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ridgeline.measure.guard.keep import Keeper, watch
from ridgeline.measure.guard.offline import stay_at_home
from ridgeline.measure.guard.on_import import after_import
from ridgeline.measure.guard.view import SESSION_NAME, VIEW_NAME, FileView
from ridgeline.patches import patch

_keepers: dict[str, Keeper] = {}


def keeper_of(session_folder: str) -> Keeper | None:
    """This process's keeper for a session, watching; None where files may be written."""
    if session_folder not in _keepers:
        session = json.loads(Path(session_folder, SESSION_NAME).read_bytes())
        if not session.get("report", True) or not session.get("saved_folder"):
            return None
        noted = Path(session_folder, VIEW_NAME)
        view = FileView.read(noted) if noted.exists() else FileView(caches=(session_folder,))
        keeper = Keeper(Path(session["saved_folder"]), view)
        _keepers[session_folder] = keeper
        watch(keeper)
        watch_writers(keeper)
        stay_at_home(Path(session_folder))
    return _keepers[session_folder]


_WRITERS = {
    "torch.jit:save": (1, "f"),
    "safetensors.torch:serialize_file": (1, "filename"),
    "safetensors.numpy:serialize_file": (1, "filename"),
    "pyarrow.parquet.core:ParquetWriter.__init__": (1, "where"),
    "pandas.io.parquet:to_parquet": (1, "path"),
}
"""Which of its arguments is the file, by position and by name.

`torch.save` is patched together with its timing (`child/saved_files.py`)."""


def watch_writers(keeper: Keeper) -> None:
    """Patch those that are imported, and the others once they are."""
    for name, (position, keyword) in _WRITERS.items():
        told = functools.partial(_told, keeper=keeper, position=position, keyword=keyword)
        after_import(name.partition(":")[0], functools.partial(patch, name, told))


def _told(
    original: Callable[..., Any], *, keeper: Keeper, position: int, keyword: str
) -> Callable[..., Any]:
    @functools.wraps(original)
    def write(*args: Any, **kwargs: Any) -> Any:
        file = args[position] if position < len(args) else kwargs.get(keyword)
        if isinstance(file, (str, os.PathLike)):
            keeper.before(file, "anew")
        return original(*args, **kwargs)

    return write
