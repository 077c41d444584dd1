"""The time of one step of a serving engine: prompt tokens and decodes in one forward pass.

    linear layers    (w^p + g^p)^(1/p), w: weights read, g: their matmuls       p = `BLEND`
    attention        cache of every decode read; matmuls of every prompt token with its context
    tensor parallel  two all-reduces a layer: latency, and 2 (n-1)/n of the activations
    launches         a least time per layer, of kernels that have next to nothing to do
    host             a fixed time per step, and one per sequence that is sampled

Reading and matmuls of linear layers overlap, so that the longer one counts but for the ridge,
where neither hides the other (Williams et al., "Roofline", CACM 52(4), 2009). A step reads all
weights once, of a routed layer those of the experts that some token of the step is sent to: of E
experts with k per token, T tokens miss one with (1 - k/E)^T. Eager engines cannot launch faster
than their host: the longer of device and host counts. Sources of the forms: Pope et al.,
2211.05102, section 2; Shoeybi et al., 1909.08053, section 3; Agrawal et al., 2403.02310, section 3.

Everything is an array over cases, one number a case; a case alone is an array of one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from ridgeline.cost.arrays import Cases, Floats
from ridgeline.cost.serving.coefficients import Rates
from ridgeline.cost.serving.setting import Hosted, cached_bytes

N = TypeVar("N", float, Floats)
BLEND = 4.0
"""How sharp the ridge is: at equal times of reading and matmuls the sum is 1.19 times either."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work(Cases):
    """What one step computes, over all its sequences."""

    prompt_tokens: Floats
    prompt_pairs: Floats
    """Query and key pairs of these tokens: n(n+1)/2 for a prompt of n in one piece."""
    window_pairs: Floats
    """The same in layers that see a window."""
    prompts_done: Floats
    """Prompts that end in this step, and so are sampled."""
    decodes: Floats
    """Sequences that get one more token."""
    decode_context: Floats
    """Tokens in the cache of one of them, on average."""


TERMS = ("weights", "matmuls", "attention", "cache", "communication", "launches", "host")


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime(Cases):
    """Seconds of a step by term. `total` is less than their sum: reading hides behind matmuls."""

    weights: Floats
    matmuls: Floats
    attention: Floats
    cache: Floats
    communication: Floats
    launches: Floats
    host: Floats
    total: Floats


def step_time(hosted: Hosted, rates: Rates, work: Work) -> StepTime:
    """Seconds of a step. Cases are matched by position."""
    tokens = work.prompt_tokens + work.decodes
    sampled = work.decodes + work.prompts_done
    read = hosted.shared_bytes + hosted.expert_bytes * experts_met(hosted.expert_share, tokens)
    weights = read / (hosted.bandwidth * rates.memory * rates.unpack)
    linear = 2.0 * hosted.shared_products / (hosted.peak * rates.gemm)
    routed = 2.0 * hosted.expert_products / (hosted.peak * rates.gemm * rates.expert_gemm)
    head = 2.0 * hosted.head_products / (hosted.peak_sixteen * rates.gemm)
    matmuls = tokens * (linear + routed) + sampled * head
    pairs = (
        hosted.pair_products * work.prompt_pairs + hosted.window_pair_products * work.window_pairs
    )
    attention = 2.0 * pairs / (hosted.peak_sixteen * rates.attention)
    cache = work.decodes * cached_bytes(hosted, work.decode_context)
    cache = cache / (hosted.bandwidth * rates.cache)
    communication = _communication(hosted, rates, tokens)
    launches = hosted.layers * (rates.layer_seconds + hosted.routed * rates.routing_seconds)
    host = rates.step_seconds + rates.sequence_seconds * sampled
    device = blended(weights, matmuls) + attention + cache + communication + launches
    launched = rates.prompt_seconds + hosted.routed * rates.prompt_routing_seconds
    launched = np.where(work.prompt_tokens > 0.0, launched, 0.0)
    total = np.maximum(device, hosted.layers * np.maximum(rates.eager_seconds, launched)) + host
    return StepTime(
        weights=weights,
        matmuls=matmuls,
        attention=attention,
        cache=cache,
        communication=communication,
        launches=launches,
        host=host,
        total=total,
    )


def blended(reading: N, multiplying: N) -> N:
    """Seconds of reading and multiplying beside each other, for numbers and for arrays alike."""
    seconds: N = (reading**BLEND + multiplying**BLEND) ** (1.0 / BLEND)
    return seconds


def experts_met(share: Floats, tokens: Floats) -> Floats:
    """Share of the experts that at least one of so many tokens is sent to.

    >>> experts_met(np.array([0.25]), np.array([1.0, 8.0])).round(2)
    array([0.25, 0.9 ])
    """
    return np.asarray(1.0 - (1.0 - share) ** tokens)


def sequences_that_fit(hosted: Hosted, rates: Rates, context: Floats) -> Floats:
    """Sequences of so many tokens whose caches fit beside the weights; 0 where these do not."""
    left = hosted.memory_bytes * rates.reserve - hosted.resident_bytes
    stated = hosted.cache_room_bytes
    room = np.where(np.isnan(stated), left, stated)
    return np.asarray(np.maximum(room, 0.0) / np.maximum(cached_bytes(hosted, context), 1.0))


def least_step_seconds(hosted: Hosted, tokens: Floats) -> Floats:
    """What physics asks of a step of so many tokens: reading or multiplying at the printed peak."""
    met = experts_met(hosted.expert_share, tokens)
    reading = (hosted.shared_bytes + hosted.expert_bytes * met) / hosted.bandwidth
    multiplying = 2.0 * tokens * (hosted.shared_products + hosted.expert_products) / hosted.peak
    return np.asarray(np.maximum(reading, multiplying))


def _communication(hosted: Hosted, rates: Rates, tokens: Floats) -> Floats:
    """Two all-reduces of 16-bit activations a layer."""
    ranks = hosted.ranks
    moved = 2.0 * (ranks - 1.0) / ranks * tokens * hosted.hidden * 2.0
    each = rates.reduce_seconds * np.log2(ranks) + moved / (hosted.link * rates.link)
    return np.asarray(2.0 * hosted.layers * np.where(ranks > 1.0, each, 0.0))
