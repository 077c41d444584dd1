"""One file per cure of a pipeline, all of one shape. `tuning/` finds them here and names none.

A cure module defines

    CARD                            what it is, what it costs, how its results are checked
    applies(pipeline, seen) -> Fit  settings worth trying on this pipeline, or why there are none
    apply(pipeline, options)        the changed pipeline; modules are changed in place
    settings(options)               (optional) how the pipeline is to be run: executor, threads

What may not enter: another cure, and measuring. Order and conflict are traits on the card. Start
reading at `camera_batching.py`; the list is the folder: a new file is a new cure.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, Protocol

from ridgeline.errors import InputError
from ridgeline.records.ledger import Options

if TYPE_CHECKING:
    from ridgeline.realtime.execute import ExecutorName
    from ridgeline.realtime.pipeline import Pipeline
    from ridgeline.realtime.rewriting.observe import ObservedModule, ObservedPipeline


class CureStage(IntEnum):
    """The order in which cures are tried and applied: what must be there before what."""

    GRAPH = 0
    INPUT = 1
    BATCH = 2
    SETTINGS = 3
    LAYOUT = 4
    PROGRAM = 5
    TIME = 6
    SPACE = 7
    RUN = 8


Watched = Literal["p50", "mean", "p99", "age"]
"""What a cure must make smaller: the median latency of a frame; its mean, where frames differ; its
99th percentile; or the median age of results at the declared rate, where frames queue."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CureCard:
    """What a reader wants to know of a cure before trying it."""

    name: str
    """Kebab case; the file's name with underscores."""
    title: str
    costs: str
    """What it costs in memory, start-up, exactness or freshness."""
    source: str
    stage: CureStage
    slot: str = ""
    """Cures in one slot exclude each other; a faster one takes the place of the one that is in."""
    watched: Watched = "p50"
    freedom: float = 0.0
    """What it may do to results: 0 they stay equal, `ROUNDING`, or the bound of `results.py` for
    numbers and for the share of frames that come out otherwise."""


@dataclass(frozen=True, slots=True)
class Fit:
    """Settings worth trying, in the order of their promise; or why there are none."""

    options: tuple[Options, ...] = ()
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunChoice:
    """How a pipeline is run."""

    executor: ExecutorName = "inline"
    steady: bool = False
    threads: int = 1
    """Threads of one operator."""


class Cure(Protocol):
    """The shape of a cure module."""

    CARD: CureCard

    def applies(self, pipeline: Pipeline, seen: ObservedPipeline) -> Fit:
        """Settings worth trying, or why there are none."""

    def apply(self, pipeline: Pipeline, options: Options) -> Pipeline:
        """Make the changed pipeline.

        Raises:
            InputError: The pipeline has no such stage or module.
        """


@cache
def all_cures() -> dict[str, Cure]:
    """Every cure by name, found by file: by their stages, those that change results least first."""
    found: list[Any] = [
        importlib.import_module(f"{__name__}.{info.name}")
        for info in pkgutil.iter_modules(__path__)
    ]
    found.sort(key=lambda module: (module.CARD.stage, module.CARD.freedom, module.CARD.name))
    for module in found:
        file = module.__name__.rpartition(".")[2]
        if module.CARD.name != file.replace("_", "-"):
            raise AssertionError(f"{file}.py calls itself {module.CARD.name}")
    return {module.CARD.name: module for module in found}


def cure(name: str) -> Cure:
    """The cure of that name; an unknown name lists the known ones."""
    known = all_cures()
    if name not in known:
        raise InputError(f"no cure {name!r}; known: {', '.join(known)}")
    return known[name]


def choice_after(choice: RunChoice, made: Cure, options: Options) -> RunChoice:
    """How the pipeline is run once a cure is in."""
    settings = getattr(made, "settings", None)
    return choice if settings is None else settings(choice, options)


def option_text(options: Options, name: str) -> str:
    """An option that must be there as text.

    Raises:
        InputError: It is missing or something else.
    """
    found = options.get(name)
    if not isinstance(found, str) or not found:
        raise InputError(f"the option {name} is missing or no text")
    return found


def option_number(options: Options, name: str, least: int) -> int:
    """An option that must be there as a whole number.

    Raises:
        InputError: It is missing, something else, or smaller.
    """
    found = options.get(name)
    if not isinstance(found, int) or isinstance(found, bool) or found < least:
        raise InputError(f"the option {name} is {found!r}; give a whole number of {least} or more")
    return found


PLACES = "modules"
"""The option that lists the modules of a cure: it can be tried on each of them alone."""


def named(modules: Iterable[ObservedModule]) -> str:
    """Modules as an option has them, those that take longest first."""
    ordered = sorted(modules, key=lambda module: -module.seconds_per_frame)
    return ", ".join(module.name for module in ordered)


def places_of(options: Options) -> list[str]:
    """The modules that an option lists."""
    return [name.strip() for name in str(options.get(PLACES, "")).split(",") if name.strip()]
