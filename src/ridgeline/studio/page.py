"""A page of the studio that is no explorer, and where they all are: one file of `pages/` each."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from ridgeline.studio.files import Files

if TYPE_CHECKING:
    from starlette.routing import BaseRoute


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """One entry of the list, and the addresses that belong to it."""

    place: int
    """Where it stands below the explorers; no two stand at the same place."""
    title: str
    about: str
    """What it is for, in a sentence."""
    routes: Callable[[Files], Sequence[BaseRoute]]
    """Its addresses, all of which begin with `/NAME`; `/NAME` itself is the page."""
    shown: Callable[[Files], bool] = lambda _: True
    """Whether the list has it."""


@cache
def pages() -> Mapping[str, Page]:
    """Name in addresses → page, in the order of their places."""
    from ridgeline.studio import pages as room

    found: dict[str, Page] = {}
    for module in pkgutil.iter_modules(room.__path__):
        page = importlib.import_module(f"{room.__name__}.{module.name}").PAGE
        assert isinstance(page, Page), module.name
        found[module.name.replace("_", "-")] = page
    places = [one.place for one in found.values()]
    assert len(set(places)) == len(places), "two pages stand at the same place"
    return dict(sorted(found.items(), key=lambda pair: pair[1].place))
