"""The time that saving takes, and folders that are saved beside and moved.

What a script saves does not last: see `guard/view.py` and `guard/keep.py`.
"""

from __future__ import annotations

import errno
import functools
import os
import shutil
from collections.abc import Callable
from time import perf_counter
from typing import Any

from ridgeline.measure.guard.keep import Keeper
from ridgeline.patches import patch


class SavedFiles:
    """Looks after what one process saves."""

    def __init__(self, keeper: Keeper | None, timed: Callable[[float], None]) -> None:
        self._keeper = keeper  # None: the run may keep its files
        self._timed = timed

    def install(self) -> None:
        """Patch `torch.save`, and the other writers once they are imported."""
        patch("torch:save", self._timed_save)
        if self._keeper is None:
            return
        patch("os:rename", _moving_folders)
        patch("os:replace", _moving_folders)

    def _timed_save(self, original: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(original)
        def save(obj: Any, f: Any, *args: Any, **kwargs: Any) -> None:
            started = perf_counter()
            self._remember(f)
            original(obj, f, *args, **kwargs)
            self._timed(perf_counter() - started)

        return save

    def _remember(self, file: Any) -> None:
        if self._keeper is not None and isinstance(file, (str, os.PathLike)):
            self._keeper.before(file, "anew")


def _moving_folders(original: Callable[..., None]) -> Callable[..., None]:
    """Without root's rights an overlay cannot rename a folder of the layer below: copy it."""

    @functools.wraps(original)
    def rename(src: Any, dst: Any, **kwargs: Any) -> None:
        try:
            original(src, dst, **kwargs)
        except OSError as error:
            here = not kwargs and os.path.isdir(src) and not os.path.exists(dst)
            if error.errno != errno.EXDEV or not here:
                raise
            shutil.copytree(src, dst, symlinks=True)
            shutil.rmtree(src)

    return rename
