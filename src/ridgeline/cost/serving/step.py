"""The time of one step of a serving engine: prompt tokens and decodes in one forward pass.

    linear layers    (w^p + g^p)^(1/p), w: weights read, g: their matmuls       p = `BLEND`
    routed experts   the same, apart: they run after one another; and copies of their tokens
    attention        cache of every decode read, beside its matmuls: latent attention makes so many
                     of what it keeps that they may take longer (DeepSeek-V2, 2405.04434, 2.1);
                     matmuls of every prompt token with its context, sparse attention's with what
                     its chooser leaves, and the chooser's with all
    states           of every decode read and written; prompts scanned in chunks (`state_scan.py`)
    tensor parallel  two all-reduces a layer: latency, and 2 (n-1)/n of the activations, by one
                     kernel that fetches them from its peers or by a library's pipeline
    experts beside   attention data parallelism sends each token to its experts and back: two
                     all-to-alls a routed layer, in 8 and 16 bits (DeepEP's README)
    launches         a least time per layer, of kernels that have next to nothing to do
    host             a fixed time per step, one more for a group of ranks, and one per sequence that
                     is sampled

Reading and matmuls of linear layers overlap, so that the longer one counts but for the ridge,
where neither hides the other (Williams et al., "Roofline", CACM 52(4), 2009). A step reads all
weights once, of a routed layer those of the experts that some token of the step is sent to: of E
experts with k per token, T tokens miss one with (1 + T k / (E a))^-a, a: how even their popularity
is. Where whole experts are dealt out, all devices wait for the one whose experts multiply the most.
Matrices times one vector to four have kernels of their own; tiles for more tokens may read more
slowly, and the last of them leave compute units without one (`tile_waves.py`). Grouped matmuls work
in tiles of rows: with few tokens for each expert most of a tile is empty, so that their rate is
t / (t + t0) of the best (Gale et al., "MegaBlocks", 2211.15841, section 3).
The second of an expert's matmuls, a third of its work, is as deep as the expert is wide, on each
device: of d bytes it takes (d + d0) / d times as long, as every matmul whose loop over its depth is
short. Engines that launch every kernel, and those whose graphs end at a context that decodes have
outgrown, cannot launch faster than their host: the longer of device and host counts.
Sources of the forms: Pope et al., 2211.05102, section 2; Shoeybi et al., 1909.08053, section 3;
Agrawal et al., 2403.02310, section 3.

Everything is an array over cases, one number a case; a case alone is an array of one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from ridgeline.cost.arrays import Cases, Floats
from ridgeline.cost.serving.coefficients import Rates
from ridgeline.cost.serving.setting import Hosted, busiest, cached_bytes, moved_cache_bytes
from ridgeline.cost.serving.tile_waves import TILE

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
    """Sequences that get one more token, or as many as hold of their guesses and one."""
    checked: Floats
    """Tokens that each of them brings: one, and the guesses that are checked with it."""
    decode_context: Floats
    """Tokens in the cache of one of them, on average."""
    prompt_groups: Floats
    """Groups of devices among which the prompts are spread: 1 for a prompt alone."""


VECTOR_ROWS = 4.0
"""Tokens up to which kernels for a matrix times a vector are used (vLLM's and hipBLASLt's
`wvSplitK`)."""
LATE_LOADS = 0.17
"""Share of the time of reading that an A100's memory waits for its compute units' next loads: of
llama.cpp's runs in 16 bits on cards whose memory brings a fifth to a half as much to each unit
(XiongjieDai/GPU-Benchmarks-on-LLM-Inference) seven read 3 to 16 % faster than without."""
LEAST_EVENNESS = 0.5
"""The least even routing that a physical limit allows for."""

TERMS = ("weights", "matmuls", "attention", "cache", "communication", "launches", "host", "guesses")


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
    guesses: Floats
    """Making guesses; 0 unless a load says what they take."""
    total: Floats


def step_time(hosted: Hosted, rates: Rates, work: Work) -> StepTime:
    """Seconds of a step. Cases are matched by position."""
    brought = work.decodes * work.checked
    tokens = work.prompt_tokens + brought
    decodes = busiest(hosted, work.decodes)
    prompts = work.prompt_tokens / work.prompt_groups
    own = prompts + decodes * work.checked  # tokens of the group that has the most
    reading = read_bytes_per_second(hosted, rates)
    read_at = reading * unpacking(hosted, rates) * np.where(own > VECTOR_ROWS, rates.tiled, 1.0)
    weights = hosted.shared_bytes / read_at
    linear = 2.0 * hosted.shared_products / (hosted.peak * rates.gemm * rates.widened_gemm)
    head = 2.0 * hosted.head_products / (hosted.peak_sixteen * rates.gemm)
    sampled_here = busiest(hosted, brought + work.prompts_done)
    matmuls = own * linear + wave_seconds(hosted, rates, own) + sampled_here * head
    expert_weights, expert_matmuls = _experts(hosted, rates, tokens)
    pairs = (
        hosted.pair_products * work.prompt_pairs + hosted.window_pair_products * work.window_pairs
    )
    attention = 2.0 * pairs / work.prompt_groups / (hosted.peak_sixteen * rates.attention)
    scanned = prompts * hosted.scan_products / (hosted.peak_sixteen * rates.scan)
    attention = attention + 2.0 * scanned
    moved = moved_cache_bytes(hosted, work.decode_context)
    cache = decodes * moved / (hosted.bandwidth * rates.cache)
    near = np.minimum(work.decode_context, hosted.window)
    seen = work.decode_context * hosted.decode_pair_products
    seen = decodes * (seen + near * hosted.window_decode_pair_products)
    cache = blended(cache, 2.0 * seen / (hosted.peak_sixteen * rates.attention))
    activations = rates.passes * activation_bytes(hosted, own, tokens) / reading
    communication = _communication(hosted, rates, own) + _dispatch(hosted, rates, own)
    starts = hosted.layers * rates.layer_seconds + hosted.routed_layers * rates.routing_seconds
    launches = starts + activations
    host = fixed_host_seconds(hosted, rates) + rates.sequence_seconds * sampled_here
    linear_layers = blended(weights, matmuls) + blended(expert_weights, expert_matmuls)
    device = linear_layers + attention + cache + communication + launches
    replayed = (work.prompt_tokens == 0.0) & (work.decode_context <= rates.captured_context)
    eager = np.where(replayed, 0.0, hosted.layers * rates.eager_seconds)
    launched = np.where(work.prompt_tokens > 0.0, prompt_host_seconds(hosted, rates), 0.0)
    terms = {
        "weights": weights + expert_weights,
        "matmuls": matmuls + expert_matmuls,
        "attention": attention,
        "cache": cache,
        "communication": communication,
        "launches": launches,
        "host": host,
        "guesses": np.zeros_like(host),
        "total": np.maximum(device, np.maximum(eager, launched)) + host,
    }
    return StepTime(**{name: rates.pace * value for name, value in terms.items()})


def read_bytes_per_second(hosted: Hosted, rates: Rates) -> Floats:
    """Bytes of weights that memory brings.

    A compute unit has so many loads under way at once, and waits for them (Little's law): where
    memory brings less to each of them in a cycle than an A100's does, it is kept busier.
    """
    idle = LATE_LOADS * (1.0 - np.minimum(hosted.unit_bytes, 1.0))
    return np.asarray(hosted.bandwidth * rates.memory / (1.0 - idle))


def unpacking(hosted: Hosted, rates: Rates) -> Floats:
    """Rate of reading weights that must be widened first, over that of others, on this device.

    Widening takes as long on every part with as many compute units at that clock; what it adds to
    reading grows with the bytes that memory brings to each of them.
    """
    return np.asarray(1.0 / (1.0 + (1.0 / rates.unpack - 1.0) * hosted.unit_bytes))


def wave_seconds(hosted: Hosted, rates: Rates, rows: Floats) -> Floats:
    """Time of the dense matmuls' last waves; a few rows go to kernels for vectors instead."""
    tall = np.where(rows > VECTOR_ROWS, np.minimum(rows, TILE), 0.0)
    return np.asarray(tall * row_wave_seconds(hosted, rates))


def row_wave_seconds(hosted: Hosted, rates: Rates) -> Floats:
    """The same for each row of a tile."""
    return np.asarray(rates.last_wave * 2.0 * hosted.wave_products / hosted.peak)


def fixed_host_seconds(hosted: Hosted, rates: Rates) -> Floats:
    """Host time of every step: its schedule, and telling it to the ranks of a group."""
    group = np.where(hosted.ranks > 1.0, rates.group_seconds, 0.0)
    return np.asarray(rates.step_seconds + group)


def prompt_host_seconds(hosted: Hosted, rates: Rates) -> Floats:
    """Host time of launching a step that carries prompts."""
    routing = hosted.routed_layers * rates.prompt_routing_seconds
    return np.asarray(hosted.layers * rates.prompt_seconds + routing)


def activation_bytes(hosted: Hosted, own: Floats, tokens: Floats) -> Floats:
    """Bytes of one pass over all activations in 16 bits, each token's copies for experts too."""
    routed = tokens * hosted.routed_layers * hosted.expert_slots
    return np.asarray(2.0 * hosted.hidden * (own * hosted.layers + routed))


def met_of(hosted: Hosted, rates: Rates, tokens: Floats) -> Floats:
    """Share of a replica's experts that a step reads; all of a dense model's, which has none."""
    return np.where(
        hosted.expert_bytes > 0.0,
        experts_met(hosted.expert_share, tokens, rates.evenness),
        1.0,
    )


def _experts(hosted: Hosted, rates: Rates, tokens: Floats) -> tuple[Floats, Floats]:
    """Seconds of reading the routed experts that these tokens meet, and of their matmuls."""
    met = met_of(hosted, rates, tokens)
    reading = read_bytes_per_second(hosted, rates) * unpacking(hosted, rates) * rates.expert_memory
    each = tokens * hosted.expert_share / np.maximum(met, 1e-12)
    rate = expert_flops_per_second(hosted, rates) * each / (each + rates.expert_tokens)
    multiplying = np.where(
        tokens > 0.0, tokens * 2.0 * hosted.expert_products / np.maximum(rate, 1e-12), 0.0
    )
    multiplying = multiplying * most_tokens(hosted, rates, tokens)
    return np.asarray(hosted.expert_bytes * met / reading), np.asarray(multiplying)


def most_tokens(hosted: Hosted, rates: Rates, tokens: Floats) -> Floats:
    """Tokens that come to the busiest device's experts, over the mean of all devices.

    Those of one expert vary as a negative binomial does, of gamma-distributed popularity.
    """
    each = np.maximum(tokens * hosted.expert_share, 1e-12)
    varies = np.sqrt(1.0 / each + 1.0 / rates.evenness)
    return np.asarray(1.0 + hosted.expert_imbalance * varies)


def expert_flops_per_second(hosted: Hosted, rates: Rates) -> Floats:
    """Rate of the routed experts' matmuls with many tokens for each of them."""
    shallow = 1.0 + rates.expert_depth / hosted.expert_depth_bytes / 3.0
    return np.asarray(hosted.peak * rates.gemm * rates.widened_gemm * rates.expert_gemm / shallow)


def blended(reading: N, multiplying: N) -> N:
    """Seconds of reading and multiplying beside each other, for numbers and for arrays alike."""
    seconds: N = (reading**BLEND + multiplying**BLEND) ** (1.0 / BLEND)
    return seconds


def experts_met(share: Floats, tokens: Floats, evenness: Floats) -> Floats:
    """Share of the experts that at least one of so many tokens is sent to.

    Experts are not equally popular: of gamma-distributed popularity with the shape `evenness`, the
    share of experts without a token is the negative binomial's at zero (Greenwood and Yule, 1920).

    >>> experts_met(np.array([0.25]), np.array([1.0, 8.0]), np.array([2.0])).round(2)
    array([0.21, 0.75])
    """
    return np.asarray(1.0 - (1.0 + share * tokens / evenness) ** -evenness)


def sequences_that_fit(hosted: Hosted, rates: Rates, context: Floats) -> Floats:
    """Sequences of so many tokens whose caches fit beside the weights; 0 where these do not."""
    left = hosted.memory_bytes * rates.reserve - hosted.resident_bytes - rates.workspace_bytes
    stated = hosted.cache_room_bytes
    room = np.where(np.isnan(stated), left, stated)
    each = np.maximum(cached_bytes(hosted, context), 1.0)
    return np.asarray(np.maximum(room, 0.0) / each * hosted.groups)


def least_step_seconds(hosted: Hosted, tokens: Floats) -> Floats:
    """What physics asks of a step of so many tokens: reading or multiplying at the printed peak."""
    met = experts_met(hosted.expert_share, tokens, np.array(LEAST_EVENNESS))
    reading = (hosted.shared_bytes + hosted.expert_bytes * met) / hosted.bandwidth
    products = hosted.shared_products / hosted.groups + hosted.expert_products
    multiplying = 2.0 * tokens * products / hosted.most_peak
    return np.asarray(np.maximum(reading, multiplying))


def _communication(hosted: Hosted, rates: Rates, tokens: Floats) -> Floats:
    """Two all-reduces of 16-bit activations a layer, each by the faster of two ways."""
    piped = all_reduced_bytes(hosted) * tokens / (hosted.link * rates.link)
    extra = np.minimum(tokens * fetching_seconds(hosted, rates), piping_seconds(hosted, rates))
    least = 2.0 * hosted.layers * rates.reduce_seconds * np.log2(hosted.ranks)
    return np.asarray(least + piped + extra)


def all_reduced_bytes(hosted: Hosted) -> Floats:
    """What all-reduces move of one token to and from a device, over all layers."""
    moved = 2.0 * (hosted.ranks - 1.0) / hosted.ranks * hosted.hidden * 2.0
    return np.asarray(2.0 * hosted.layers * moved)


def fetching_seconds(hosted: Hosted, rates: Rates) -> Floats:
    """What a token takes beyond the links where one kernel fetches it from its peers."""
    return np.asarray(all_reduced_bytes(hosted) / rates.copy_bytes_per_second)


def piping_seconds(hosted: Hosted, rates: Rates) -> Floats:
    """What all tokens of a step take beyond the links by a library's pipeline."""
    return np.asarray(2.0 * hosted.layers * np.where(hosted.ranks > 1.0, rates.bulk_seconds, 0.0))


def _dispatch(hosted: Hosted, rates: Rates, own: Floats) -> Floats:
    """Tokens on their way to their experts, in 8 bits, and back, in 16, a routed layer.

    A token goes to each device once at most, and only where sequences are dealt out do devices
    lack some: else each has all tokens already, and the all-reduce joins what experts return.
    All wait for the group that sends the most, `own` tokens.
    """
    devices = hosted.ranks * hosted.groups
    copies = np.minimum(hosted.expert_slots * devices, devices - 1.0)
    moved = own / hosted.ranks * copies * hosted.hidden * 3.0
    each = 2.0 * rates.reduce_seconds * np.log2(devices) + moved / (hosted.link * rates.link)
    return np.asarray(hosted.routed_layers * np.where(hosted.groups > 1.0, each, 0.0))
