"""One file per lineage of model types; each lists `READERS`: model type → function.

A reader turns the `Keys` of a `config.json` into a `ModelSpec`. What several need (sizes under
their usual names, windows, heads) is in `sizes.py`. A new family is one more entry, or one more
file here with its own `READERS`; files are found, not listed.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Callable

from ridgeline.models.keys import Keys
from ridgeline.models.spec import ModelSpec

Reader = Callable[[Keys], ModelSpec]


@functools.cache
def readers() -> dict[str, Reader]:
    """Model type → its reader, from every file of this folder."""
    found: dict[str, Reader] = {}
    for module in sorted(one.name for one in pkgutil.iter_modules(__path__)):
        entries = getattr(importlib.import_module(f"{__name__}.{module}"), "READERS", {})
        twice = found.keys() & entries.keys()
        assert not twice, f"{sorted(twice)} are read by two families"
        found.update(entries)
    return found
