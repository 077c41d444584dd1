"""The layers that cost most back in float, within a budget of multiplications.

A bad layer's numbers are rounded where it makes them and where others read them, so what cures it
may be the layer itself, its readers, or both: each is tried, and what helps for the fewest
multiplications is kept. Equalisation costs none and is tried first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf

import torch
from torch import nn

from ridgeline.compress.vision.batches import Batch, inputs_of
from ridgeline.compress.vision.operators import copied
from ridgeline.compress.vision.points import find_points, origin
from ridgeline.compress.vision.quantise import (
    PreparedVision,
    QuantisedVision,
    prepare,
    prepare_graph,
    rounded,
)
from ridgeline.compress.vision.sensitivity import (
    LayerSensitivity,
    outputs_of,
    probe_images,
    rank_layers,
    sqnr_db,
)
from ridgeline.records.scheme import Scheme
from ridgeline.records.scheme_names import parse

MOST_FLOAT = 0.1
"""Share of the multiply-accumulates that may return to float."""
_TRIED = 8
"""Layers of the ranking that are tried before the rest is left as it is."""
_GAIN = 0.5
"""Decibels that a layer in float must win to be kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedVision:
    """A model rounded but for what costs most, and how that was found."""

    quantised: QuantisedVision
    ranking: tuple[LayerSensitivity, ...]
    """Each layer alone, the costliest first."""
    before_db: float
    """The outputs' SQNR with all layers rounded."""
    after_db: float
    in_float: tuple[str, ...]
    float_share: float
    """The share of the multiply-accumulates in float."""
    equalised: bool
    """Whether equalisation was added to the scheme."""


def mixed(
    model: nn.Module,
    batches: Sequence[Batch],
    scheme: Scheme | str,
    *,
    least_db: float = inf,
    most_float: float = MOST_FLOAT,
    on_progress: Callable[[str], None] = lambda _: None,
) -> MixedVision:
    """Rank layers, then return the costliest to float until the outputs are good enough.

    Args:
        model: As for `quantise`.
        batches: As for `quantise`; some of them judge.
        scheme: As for `quantise`.
        least_db: The SQNR of the outputs at which to stop; without one, all that helps is done.
        most_float: The share of multiply-accumulates that may be in float, 0 to 1.
        on_progress: Told what is under way.

    Raises:
        InputError: As `quantise`.
    """
    scheme = parse(scheme) if isinstance(scheme, str) else scheme
    prepared = prepare(model, batches, scheme, on_progress=on_progress)
    ranking = rank_layers(prepared, on_progress=on_progress)
    judge = _Judge(prepared)
    before = judge.sqnr(prepared, ())
    best, order, equalised = before, ranking, False
    if best < least_db and not scheme.equalise:
        on_progress("trying equalisation")
        other = prepare_graph(copied(prepared.graph), prepared.batches, parse(f"{scheme.name}-cle"))
        with_cle = judge.sqnr(other, ())
        if with_cle > best + _GAIN:
            prepared, best, equalised = other, with_cle, True
            order = rank_layers(prepared, on_progress=on_progress)
    chosen, best = _chosen(prepared, judge, order, (best, least_db), most_float, on_progress)
    whole = sum(layer.macs for layer in prepared.layers)
    return MixedVision(
        quantised=rounded(prepared, in_float=chosen, on_progress=on_progress),
        ranking=ranking,
        before_db=before,
        after_db=best,
        in_float=chosen,
        float_share=_macs(prepared, (*chosen, *prepared.apart)) / max(1, whole),
        equalised=equalised,
    )


class _Judge:
    """The outputs in float of a few images, to compare with."""

    def __init__(self, prepared: PreparedVision) -> None:
        self.images = probe_images(prepared)
        with torch.no_grad():
            self.exact = outputs_of(prepared.graph(*inputs_of(self.images)))

    def sqnr(self, prepared: PreparedVision, in_float: Sequence[str]) -> float:
        with torch.no_grad():
            module = rounded(prepared, in_float=in_float).module
            return sqnr_db(self.exact, outputs_of(module(*inputs_of(self.images))))


def _chosen(
    prepared: PreparedVision,
    judge: _Judge,
    order: Sequence[LayerSensitivity],
    limits: tuple[float, float],
    most_float: float,
    on_progress: Callable[[str], None],
) -> tuple[tuple[str, ...], float]:
    """Which layers stay in float, and the SQNR then; limits: of now, and at which to stop."""
    best, least_db = limits
    budget = most_float * sum(layer.macs for layer in prepared.layers)
    chosen: tuple[str, ...] = ()
    for one in order[:_TRIED]:
        if best >= least_db:
            break
        on_progress(f"trying {one.layer} in float")
        options = []
        for names in _cures(prepared, one.layer):
            together = tuple(dict.fromkeys((*chosen, *names)))
            if together != chosen and _macs(prepared, (*together, *prepared.apart)) <= budget:
                options.append((judge.sqnr(prepared, together), together))
        if not options:
            continue
        most = max(sqnr for sqnr, _ in options)
        enough = [pair for pair in options if pair[0] >= most - _GAIN]
        sqnr, together = min(enough, key=lambda pair: _macs(prepared, pair[1]))
        if sqnr >= best + _GAIN:
            chosen, best = together, sqnr
    return chosen, best


def _cures(prepared: PreparedVision, name: str) -> list[tuple[str, ...]]:
    """The layer, those that read its numbers, and both."""
    points = {one.node for one in find_points(prepared.layers) if one.owner == name}
    readers = tuple(
        layer.name
        for layer in prepared.layers
        if layer.name != name
        and layer.name not in prepared.apart
        and any(origin(node) in points for node in layer.inputs)
    )
    return [(name,), readers, (name, *readers)] if readers else [(name,)]


def _macs(prepared: PreparedVision, names: Sequence[str]) -> int:
    return sum(layer.macs for layer in prepared.layers if layer.name in names)
