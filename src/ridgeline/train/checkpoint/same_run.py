"""Whether a recipe may go on from a checkpoint: it must still describe the same course of losses.

What decides which numbers are computed must stay. What decides only where, how fast, how long and
under whose eyes may change: the layout (other ranks sum in another order), the steps, the log.
Which text it is, the loader's own identity tells, wherever the text lies. Imports no torch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from ridgeline.errors import InputError
from ridgeline.records.recipe import Recipe
from ridgeline.train.checkpoint.store import Checkpoint

_MAY_CHANGE = {
    "model": {"attention"},
    "data": {"path", "sources", "tokenizer", "tokens", "workers", "validation"},
    "images": {"path", "validation", "epochs", "images", "workers", "steps_ahead"},
    "communication": {"bucket_bytes", "hierarchical"},
}
"""Keys of tables in which others may not."""
_FREE = {"run", "memory", "checkpoint", "survive", "cluster", "prediction"}
"""Tables that may change as they like, but for `_FIXED`."""
_FIXED = {"run": {"seed"}, "layout": {"global_batch", "precision"}}
"""Keys that may not change, in tables that may."""


def check_same_run(checkpoint: Checkpoint, recipe: Recipe) -> None:
    """Let a recipe go on from a checkpoint, or say why it cannot.

    Raises:
        InputError: A key that decides the course differs; the message names it.
    """
    changes = list(differences(checkpoint.manifest.recipe, recipe))
    if not changes:
        return
    name, before, now = changes[0]
    more = f" (and {len(changes) - 1} more)" if len(changes) > 1 else ""
    raise InputError(
        f"{name} was {_shown(before)} in the run of {checkpoint.path.parent.parent} and is"
        f" {_shown(now)} in this recipe{more}: put it back, give another --out, or start anew with"
        " --fresh, which deletes the checkpoints there"
    )


def differences(saved: Mapping[str, Any], recipe: Recipe) -> Iterator[tuple[str, Any, Any]]:
    """Name, earlier and present value of each key that differs and may not."""
    earlier = _filled_up(saved)
    present = msgspec.to_builtins(recipe)
    for table, now in present.items():
        before = earlier.get(table)
        if not isinstance(now, dict) or not isinstance(before, dict):
            if before != now and table not in _FREE:
                yield table, before, now
            continue
        for key in now:
            if not _may_change(table, key) and before.get(key) != now[key]:
                yield f"{table}.{key}", before.get(key), now[key]


def _may_change(table: str, key: str) -> bool:
    if table in _FREE or table == "layout":
        return key not in _FIXED.get(table, ())
    return key in _MAY_CHANGE.get(table, ())


def _filled_up(saved: Mapping[str, Any]) -> dict[str, Any]:
    """Add the defaults of keys that came later, where the rest can still be read."""
    try:
        tables: dict[str, Any] = msgspec.to_builtins(msgspec.convert(saved, type=Recipe))
    except (msgspec.ValidationError, InputError):
        return dict(saved)
    return tables


def _shown(value: Any) -> str:
    return "not there" if value is None else msgspec.json.encode(value).decode()
