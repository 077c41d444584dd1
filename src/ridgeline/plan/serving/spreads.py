"""How far published runs fall from predictions that never saw them, and so how wide intervals are.

A spread is the standard deviation of log(published / predicted), taken from the errors of campaigns
and sources left out of the fit so that 80 % intervals hold 80 % of them (split conformal
prediction; Vovk et al., "Algorithmic Learning in a Random World", 2005, chapter 4): one for each
kind of metric, dense models and mixtures apart, and near to what the fit has seen or far from it.
Far is a case of which no fitted run shares all of architecture, class of engine, dense or mixture,
and kind of layout: its error has another distribution, which left-out sources show as well.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import msgspec
import numpy as np

from ridgeline.cost.serving.setting import ServingLayout
from ridgeline.cost.training.estimate import COVERAGE_80

KINDS = ("first_token", "next_token", "throughput")
FAR = 1.5
"""Times as wide far from the fit where no left-out source tells."""
BELIEVED = {"first_token": 0.4, "next_token": 0.25, "throughput": 0.25}
"""Spreads of dense models before any run is looked at."""
EXPERTS = 1.3
"""Times as wide for mixtures of experts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Neighbourhood:
    """Where a case lies, as far as its error depends on it."""

    architecture: str
    engine: str
    experts: bool
    layout: ServingLayout
    split: bool = False
    """Whether prefill and decode have devices of their own."""

    @property
    def key(self) -> str:
        """The name under which a calibration lists what its fit has seen."""
        model = "experts" if self.experts else "dense"
        groups = "attention-dp" if self.layout.attention_dp > 1 else "tp"
        pools = "two pools" if self.split else "one pool"
        return f"{self.architecture}, {self.engine}, {model}, {groups}, {pools}"


class Spread(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Standard deviations of log(published / predicted), by `class_of`."""

    near: dict[str, float] = {}
    far: dict[str, float] = {}

    def of(self, kind: str, place: Neighbourhood, seen: Collection[str]) -> float:
        """The spread of one case, given the keys of the places that the fit has seen."""
        name = class_of(kind, experts=place.experts)
        near = self.near.get(name, believed(name))
        return near if place.key in seen else self.far.get(name, near * FAR)


def class_of(kind: str, *, experts: bool) -> str:
    """The name of a class of errors."""
    return f"{kind} {'experts' if experts else 'dense'}"


def believed(name: str) -> float:
    """The spread of a class before any run is looked at."""
    kind, _, model = name.partition(" ")
    return BELIEVED[kind] * (EXPERTS if model == "experts" else 1.0)


def factor_of(sigma: float) -> float:
    """An 80 % interval reaches from the prediction over this to the prediction times this."""
    return float(np.exp(COVERAGE_80 * sigma))
