"""Writers in C++ and Rust, whom no audit hook sees: they tell the keeper themselves."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any

from ridgeline.measure.guard.keep import Keeper
from ridgeline.measure.guard.on_import import after_import
from ridgeline.patches import patch

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
