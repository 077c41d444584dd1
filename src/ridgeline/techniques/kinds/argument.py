"""Techniques that are one keyword argument of a constructor."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ridgeline.measure.child.points import Points, edit_arguments
from ridgeline.patches import Undo
from ridgeline.records import LoaderFacts
from ridgeline.records.edits import Edit, SetArgument
from ridgeline.records.ledger import Options
from ridgeline.techniques import Card, Context

Apply = Callable[[Points, Options], Undo]
Edits = Callable[[Context, Options], list[Edit]]
Value = bool | int
_CONSTRUCTORS = {
    "DistributedDataParallel": "torch.nn.parallel:DistributedDataParallel.__init__",
}
"""Classes without a callback list in `Points` → what is patched to see them constructed."""


def set_argument(
    card: Card,
    owner: str,
    keyword: str,
    value: Value | Callable[[Options], Value],
    *,
    fits: Callable[[Mapping[str, Any]], bool] | None = None,
    lacks: Callable[[LoaderFacts], bool] | None = None,
) -> tuple[Apply, Edits]:
    """The `apply` and `edits` of a technique that is one keyword argument of a constructor.

    Args:
        card: What the technique says of itself.
        owner: The class: `DataLoader`, or one of `_CONSTRUCTORS`.
        keyword: Its argument.
        value: What the argument is set to, or how that follows from the options.
        fits: Of the arguments of a construction: is it one to change? None: every one is.
        lacks: Of a loader that was seen: should a person write it there? None: wherever the
            class is called in the user's files.
    """

    def value_of(options: Options) -> Value:
        return value(options) if callable(value) else value

    def apply(points: Points, options: Options) -> Undo:
        """Set the argument as the object is constructed."""
        wanted, changed = value_of(options), 0

        def set_it(arguments: dict[str, Any]) -> None:
            nonlocal changed
            if arguments.get(keyword, False) == wanted or not (fits is None or fits(arguments)):
                return
            arguments[keyword] = wanted
            changed += 1
            points.changed(card.name, f"{keyword}={wanted} in {changed} {owner}(s)")

        set_it.__module__ = card.module
        if owner in _CONSTRUCTORS:
            return edit_arguments(_CONSTRUCTORS[owner], set_it)
        points.on_loader.append(set_it)
        return lambda: points.on_loader.remove(set_it)

    def edits(context: Context, options: Options) -> list[Edit]:
        """One argument of the constructor."""
        written = str(value_of(options))
        if lacks is None:
            return [SetArgument(files=context.files, callee=owner, keyword=keyword, value=written)]
        return [
            SetArgument(site=loader.site, callee=owner, keyword=keyword, value=written)
            for loader in context.profile.loaders
            if loader.site is not None and lacks(loader)
        ]

    return apply, edits
