"""What only the author of a stage knows, declared beside its code for the cures to use.

    encode = declare(Encoder(), encoder="", shared_as="image encoder")
    lanes = declare(LaneHead(), modes={"highway"}, mode=lambda features, state: state.mode)

A declaration changes nothing by itself: `ridgeline realtime tune` tries what it permits, measures
it, and compares results.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from ridgeline.errors import InputError

if TYPE_CHECKING:
    from ridgeline.realtime.pipeline import Pipeline

T = TypeVar("T")
Results = Mapping[str, Sequence[tuple[int, Any]]]
"""Sink → (frame, result) in order."""
Quality = Callable[[Results], Mapping[str, float]]
"""Results of recorded frames → figures of merit, each the higher the better."""

_ATTRIBUTE = "realtime_hints"
_qualities: weakref.WeakKeyDictionary[Pipeline, Quality] = weakref.WeakKeyDictionary()


@dataclass(frozen=True, slots=True, kw_only=True)
class StageHints:
    """What a stage permits."""

    encoder: str | None = None
    """Path of the module within the stage that others may stand in for; "" where it is one."""
    shared_as: str = ""
    """Encoders of stages with the same word may share one set of weights."""
    modes: frozenset[str] = frozenset()
    """Driving modes in which the stage is needed; empty: in all."""
    mode: Callable[..., str] | None = None
    """Inputs of the stage → the mode it is in."""
    otherwise: Any = None
    """The output where it is not needed."""
    align: Callable[..., Any] | None = None
    """(last output, inputs then, inputs now) → an output that stands for one computed now."""
    regions: Callable[..., Any] | None = None
    """The image that a module of the stage gets, [rows, channels, height, width] → where to
    compute: bool [rows, tiles down, tiles across]."""
    tile: int = 32
    """Side of a tile of `regions`, in pixels of that image."""
    vectorised: Callable[..., Any] | None = None
    """The same step as one operation on whole arrays, to be called in its place."""


def declare(
    call: T,
    *,
    encoder: str | None = None,
    shared_as: str = "",
    modes: Sequence[str] | set[str] = (),
    mode: Callable[..., str] | None = None,
    otherwise: Any = None,
    align: Callable[..., Any] | None = None,
    regions: Callable[..., Any] | None = None,
    tile: int = 32,
    vectorised: Callable[..., Any] | None = None,
) -> T:
    """Say what a stage permits, as `StageHints` has it; returns the stage.

    Raises:
        InputError: `modes` without `mode`, `encoder` without `shared_as`, or the other way round;
            something that takes no attributes.
    """
    for one, other, both in (
        (bool(modes), mode is not None, "modes and mode"),
        (encoder is not None, bool(shared_as), "encoder and shared_as"),
    ):
        if one != other:
            raise InputError(f"declare: {both} come together")
    hints = StageHints(
        encoder=encoder,
        shared_as=shared_as,
        modes=frozenset(modes),
        mode=mode,
        otherwise=otherwise,
        align=align,
        regions=regions,
        tile=tile,
        vectorised=vectorised,
    )
    try:
        setattr(call, _ATTRIBUTE, hints)
    except AttributeError:
        raise InputError(
            f"declare: a {type(call).__name__} takes no attributes; wrap it in a function"
        ) from None
    return call


def hints_of(call: Any) -> StageHints:
    """What was declared of a stage; nothing where nothing was."""
    found = getattr(call, _ATTRIBUTE, None)
    return found if isinstance(found, StageHints) else StageHints()


def judged_by(pipeline: Pipeline, quality: Quality) -> Pipeline:
    """Say how good results are; cures that change them are held against these figures."""
    _qualities[pipeline] = quality
    return pipeline


def quality_of(pipeline: Pipeline) -> Quality | None:
    """How a pipeline's results are judged; None: nobody said."""
    return _qualities.get(pipeline)
