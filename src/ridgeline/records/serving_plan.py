"""What a deployment of a served model will do, and which to buy.

The JSON contracts of `predict serving` and `plan serving`. Pairs are the two ends of an 80 %
interval.
"""

from __future__ import annotations

import msgspec

from ridgeline.records.estimate import CoefficientChange
from ridgeline.records.finite import Computed

Pair = tuple[float, float]


class Ranged(Computed, frozen=True, kw_only=True):
    """A predicted value with its 80 % interval."""

    value: float
    interval: Pair


class ReplicaDeployment(Computed, frozen=True, kw_only=True):
    """What runs on what."""

    model: str
    gpu: str
    tp: int
    """Devices of one replica; each layer is split over them."""
    weights: str
    cache: str
    engine: str
    """The class of engines, see `plan/serving/engines.toml`."""


class Speculation(Computed, frozen=True, kw_only=True):
    """What drafting tokens ahead should gain."""

    draft: str
    """The model that drafts; empty: drafts cost nothing."""
    num_drafts: int
    acceptance: float
    """The chance that a draft is accepted if those before it were; of a tree, the share of all its
    guesses that are."""
    tokens_per_step: float
    speedup: float
    """The speed-up of decoding; below 1 it costs."""
    best_num_drafts: int
    """With the same times; 0: speculation only costs."""
    tree_depth: int | None = None
    """Places that a tree of heads' guesses reaches; None: drafts are a chain."""


class ServingEstimate(
    Computed, frozen=True, kw_only=True, tag_field="record", tag="serving-estimate"
):
    """One replica under one load."""

    deployment: ReplicaDeployment
    prompt_tokens: float
    answer_tokens: float
    load: str
    ttft_seconds: Ranged
    """Mean, from the request's arrival."""
    tpot_seconds: Ranged
    """Mean of (last token - first token) / (tokens - 1)."""
    e2e_seconds: Ranged
    output_tokens_per_second: Ranged
    requests_per_second: Ranged
    most_output_tokens_per_second: Ranged
    """With requests that never run out."""
    running: float
    """Sequences that decode at once."""
    most_running: float
    """The most requests at one time that memory and engine allow."""
    saturated: bool
    """Whether requests queue, so that the time to the first token grows without bound."""
    step_seconds: float
    breakdown: dict[str, float]
    """Seconds of the mean step by term; reading weights and multiplying hide each other."""
    bottleneck: str
    weight_bytes: float
    """Bytes of weights on one device."""
    cache_bytes_per_token: float
    """Bytes of KV cache per token on one device."""
    assumed: list[str]
    state_bytes: float = 0.0
    """Bytes on one device that a sequence's states take, whatever its length; 0 without states."""
    calibrated: list[CoefficientChange] = msgspec.field(default_factory=list)
    """What the user's own measured load points changed."""
    speculation: Speculation | None = None
    """Where it was asked for."""


class ServingTail(Computed, frozen=True, kw_only=True):
    """The 99th percentiles of one replica at its share of the load, simulated."""

    ttft_p99_seconds: float
    itl_p99_seconds: float
    """The time between two tokens of one request, over all of them."""
    requests: int
    """Simulated, all of them."""
    failed: int


class ServingOption(Computed, frozen=True, kw_only=True):
    """One way to serve the whole load."""

    estimate: ServingEstimate
    """The estimate of one replica at its share of the load."""
    replicas: int
    replicas_interval: tuple[int, int]
    """Needed if replicas are as fast as the interval's best and worst end."""
    num_gpus: int
    usd_per_hour: float | None
    """None where no price of the device is on record."""
    usd_per_million_output_tokens: float | None
    usd_per_million_interval: Pair | None
    headroom: float
    """Share of what the replicas could carry within the targets that the load leaves."""
    meets_at_worst: bool
    """Whether mean latencies meet their targets at the interval's bad end too."""
    replicas_by_mean: int
    """Replicas that the means alone ask for; more are for the 99th percentiles."""
    tail: ServingTail | None = None
    """Where a 99th percentile was asked for."""


class SplitPool(Computed, frozen=True, kw_only=True):
    """The replicas of one side of a split deployment."""

    gpu: str
    tp: int
    weights: str
    replicas: int
    usd_per_hour: float | None


class SplitOption(Computed, frozen=True, kw_only=True):
    """Replicas that only compute prompts beside replicas that only decode."""

    prefill: SplitPool
    decode: SplitPool
    num_gpus: int
    ttft_seconds: Ranged
    tpot_seconds: Ranged
    transfer_seconds: float
    """The time in which a prompt's cache comes to the decode replica; part of the first token's."""
    transfer_bytes_per_second: float
    """What was given for the way between replicas."""
    prefill_use: float
    """Share of the time in which replicas that compute prompts do."""
    requests_per_second: float
    usd_per_hour: float | None
    usd_per_million_output_tokens: float | None


class Change(Computed, frozen=True, kw_only=True):
    """What another question would have been answered."""

    what: str
    answer: str
    usd_per_hour: float | None
    different: bool
    """Whether GPU, layout, or number of replicas changes."""


class ServingPlan(Computed, frozen=True, kw_only=True, tag_field="record", tag="serving-plan"):
    """The cheapest deployment that meets the targets, and what would change that."""

    model: str
    prompt_tokens: float
    answer_tokens: float
    users: float | None
    rate: float | None
    """Requests per second that are planned for."""
    ttft_target_seconds: float | None
    itl_target_seconds: float | None
    ttft_p99_target_seconds: float | None = None
    itl_p99_target_seconds: float | None = None
    best: ServingOption
    others: list[ServingOption]
    """The cheapest of each other device, in order of cost."""
    why_not: dict[str, str]
    """Device → why no layout of it can serve the load."""
    changes: list[Change]
    searched: int
    splits: list[SplitOption] = msgspec.field(default_factory=list)
    """The cheapest deployment on two kinds of replicas, and the cheapest on different devices."""
