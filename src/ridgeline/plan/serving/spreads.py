"""How far published runs fall from predictions that never saw them, and so how wide intervals are.

A spread is the standard deviation of log(published / predicted), taken from the errors of campaigns
and sources left out of the fit so that 80 % intervals hold 80 % of them (split conformal
prediction; Vovk et al., "Algorithmic Learning in a Random World", 2005, chapter 4): one for each
kind of metric, dense models and mixtures apart, and near to what the fit has seen or far from it.
Far is a case of which no fitted run shares all of architecture, class of engine, dense or mixture,
and kind of layout: its error has another distribution, which left-out sources show as well.
Sources are few, and within one errors are alike, so that each counts as a group (pooled
distributions of Dunn, Wasserman and Ramdas, "Distribution-free prediction sets for two-layer
hierarchical models", JASA 2023), beside one group that is believed: what dense models show says
most of mixtures, and what is near of what is far. Of an architecture without any fitted run, what
other hardware taught says little, and of bursts what other loads did: such spreads are no less than
what was believed before any run. Of a class of engines without any they are a quarter wider.

A first token beside many requests waits for what no column states, how they fell together and what
stands before the engine, so that its spread grows with their number (errors over an expected size:
Lei et al., "Distribution-free predictive inference for regression", JASA 2018, section 5.2).
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
FAR_OF = {"first_token experts": 1.0}
"""The same of classes where what is near is as little known."""
OTHER_ENGINES = 1.25
"""Times as wide for a class of engines of which no fitted run is, whose host and kernels the others
stand for; published runs of such classes (vLLM before 0.6, llama.cpp, NIM) chose it."""
BELIEVED = {"first_token": 0.4, "next_token": 0.25, "throughput": 0.25}
"""Spreads of dense models under a usual load, before any run is looked at."""
USUAL_REQUESTS = 4.0
"""Requests at once under a usual load."""
EXPERTS = {"first_token": 2.0, "next_token": 1.3, "throughput": 1.3}
"""Times as wide for mixtures of experts, by kind: engines differ most in how they run prompts."""
KNOWN_EXPERTS = {"first_token": 2.0, "next_token": 1.1, "throughput": 1.1}
"""The same over what dense models show, under usual loads on known hardware, where no mixture of
another source tells: left-out mixtures were inside an interval 1.3 times as wide in 92 to 95 % of
their runs."""
OTHER_HARDWARE = {
    "first_token dense": 1.5, "first_token experts": 1.25, "next_token dense": 1.5,
    "next_token experts": 1.5, "throughput experts": 1.5,
}  # fmt: skip
"""Class of error → times what is believed before any run, on an architecture of which no run is in
the fit: sources found later, as groups, were inside what is believed in half of their runs, but for
throughputs of dense models (`bench/serving_found_later.csv`; so do the two that follow)."""
BURSTS = {"next_token dense": 1.5, "next_token experts": 1.5}
"""The same of bursts: a time per token holds whatever stood between two tokens."""
FAR_FOUND = {"throughput experts": 1.2}
"""The same of what is far from the fit, on hardware and an engine that it has seen apart."""
CROWDING = {"first_token dense": 0.1}
"""Class of error → the power of the number of requests at once with which its spread grows. Of
mixtures, whose steps take longer than whatever stands before the engine, published errors do not
grow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Neighbourhood:
    """Where a case lies, as far as its error depends on it."""

    architecture: str
    engine: str
    experts: bool
    layout: ServingLayout
    split: bool = False
    """Whether prefill and decode have devices of their own."""
    burst: bool = False
    """Whether all requests come at once, which no fitted run's do."""

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

    def of(
        self, kind: str, place: Neighbourhood, seen: Collection[str], requests: float = 1.0
    ) -> float:
        """The spread of one case.

        Args:
            kind: Of metric.
            place: Where the case lies.
            seen: The keys of the places that the fit has seen.
            requests: Those that run at once.
        """
        name = class_of(kind, experts=place.experts)
        near = self.near.get(name, believed(name))
        far = self.far.get(name, near * far_factor(name)) * FAR_FOUND.get(name, 1.0)
        alone = near if place.key in seen else far
        if not any(f", {place.engine}, " in key for key in seen):
            alone = max(alone, near * OTHER_ENGINES)
        if place.burst:
            alone = max(alone, believed(name) * BURSTS.get(name, 1.0))
        if not any(key.startswith(f"{place.architecture}, ") for key in seen):
            alone = max(alone, believed(name) * OTHER_HARDWARE.get(name, 1.0))
        return alone * crowd_factor(name, requests)


def class_of(kind: str, *, experts: bool) -> str:
    """The name of a class of errors."""
    return f"{kind} {'experts' if experts else 'dense'}"


def crowd_factor(name: str, requests: float) -> float:
    """Times as wide beside so many requests as for one alone.

    >>> crowd_factor("first_token dense", 1.0), crowd_factor("throughput dense", 64.0)
    (1.0, 1.0)
    """
    return float(max(requests, 1.0) ** CROWDING.get(name, 0.0))


def believed(name: str) -> float:
    """The spread of a class before any run is looked at, of a request alone."""
    kind, _, model = name.partition(" ")
    usual = BELIEVED[kind] * (EXPERTS[kind] if model == "experts" else 1.0)
    return usual / crowd_factor(name, USUAL_REQUESTS)


def far_factor(name: str) -> float:
    """Times as wide far from the fit, where no left-out source tells."""
    return FAR_OF.get(name, FAR)


def factor_of(sigma: float) -> float:
    """An 80 % interval reaches from the prediction over this to the prediction times this."""
    return float(np.exp(COVERAGE_80 * sigma))
