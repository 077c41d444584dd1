"""The time of one step after another, for a simulation: one case, plain numbers, no arrays.

The same formula as `step.step_time`, with everything that does not change from step to step
worked out once; a test holds the two together. One call takes about a microsecond.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from ridgeline.cost.serving.coefficients import Rates
from ridgeline.cost.serving.setting import Hosted
from ridgeline.cost.serving.step import (
    VECTOR_ROWS,
    StepTime,
    Work,
    all_reduced_bytes,
    blended,
    expert_flops_per_second,
    fetching_seconds,
    fixed_host_seconds,
    piping_seconds,
    prompt_host_seconds,
    read_bytes_per_second,
    row_wave_seconds,
    step_time,
    unpacking,
)
from ridgeline.cost.serving.tile_waves import TILE
from ridgeline.errors import InputError


@dataclass(frozen=True, slots=True, kw_only=True)
class StepClock:
    """Seconds of a step of one replica, by what the step computes."""

    shared_read_seconds: float = 0.0
    tiled_read_seconds: float = 0.0
    """The same, for more tokens than a matrix times vector kernel takes."""
    expert_read_seconds: float = 0.0
    """Time of reading all routed experts."""
    expert_share: float = 0.0
    """Share of the experts that one token is sent to."""
    evenness: float = 1.0
    """How even the popularity of experts is."""
    expert_imbalance: float = 0.0
    """How far the busiest device's experts exceed the mean: `Hosted.expert_imbalance`."""
    expert_token_seconds: float = 0.0
    """Matmuls of one token in its experts, each with tokens in plenty."""
    expert_tokens: float = 0.0
    """Tokens of an expert at which they take twice that."""
    token_seconds: float = 0.0
    """Matmuls of one token elsewhere."""
    row_wave_seconds: float = 0.0
    """What their last waves take, for each row of a tile."""
    head_seconds: float = 0.0
    """Matmuls of the head for one sequence that is sampled."""
    sequence_seconds: float = 0.0
    """Host time of the same."""
    pair_seconds: float = 0.0
    window_pair_seconds: float = 0.0
    decode_pair_seconds: float = 0.0
    """Matmuls of a decode with one token of the cache, layers of full attention."""
    window_decode_pair_seconds: float = 0.0
    scan_seconds: float = 0.0
    """Scanning one token of a prompt in the layers with a state."""
    state_seconds: float = 0.0
    """Reading and writing one sequence's states."""
    cache_seconds: float = 0.0
    """Reading one token of the cache, layers of full attention."""
    window_cache_seconds: float = 0.0
    window: float = math.inf
    sent_seconds: float = 0.0
    """Time of all-reduces and of passing over activations, per token."""
    fetching_seconds: float = 0.0
    """The same of all-reduces of few bytes, which one kernel fetches."""
    piping_seconds: float = 0.0
    """What the pipeline of all-reduces of many bytes takes to fill instead."""
    fixed_device_seconds: float = 0.0
    """Latency of all-reduces, starting of kernels."""
    least_device_seconds: float = 0.0
    """The least time of a step without prompts: what the host needs to launch it."""
    captured_context: float = 0.0
    """Tokens of context up to which such a step replays a captured graph instead."""
    least_prompt_seconds: float = 0.0
    """The same with prompts."""
    fixed_host_seconds: float = 0.0
    pace: float = 1.0
    """Times as long as all of that says."""

    def __call__(
        self,
        *,
        prompt_tokens: int = 0,
        prompt_pairs: float = 0.0,
        prompts_done: int = 0,
        decodes: int = 0,
        decode_context: int = 0,
    ) -> float:
        """Seconds of a step.

        Args:
            prompt_tokens: Of all prompts, computed in this step.
            prompt_pairs: Query and key pairs of these: of n tokens behind m, n m + n (n + 1) / 2.
            prompts_done: Prompts that end in this step and so are sampled.
            decodes: Sequences that get one more token.
            decode_context: Tokens in all their caches together.
        """
        tokens = prompt_tokens + decodes
        sampled = decodes + prompts_done
        met: float = 1.0 - (1.0 + self.expert_share * tokens / self.evenness) ** -self.evenness
        matmuls = tokens * self.token_seconds + sampled * self.head_seconds
        experts = 0.0
        if self.expert_read_seconds and tokens:
            each = tokens * self.expert_share / met
            slowed = tokens * self.expert_token_seconds * (1.0 + self.expert_tokens / each)
            if self.expert_imbalance:
                varies = math.sqrt(1.0 / (tokens * self.expert_share) + 1.0 / self.evenness)
                slowed *= 1.0 + self.expert_imbalance * varies
            experts = blended(self.expert_read_seconds * met, slowed)
        seen = min(prompt_pairs, prompt_tokens * self.window)
        attention = prompt_pairs * self.pair_seconds + seen * self.window_pair_seconds
        attention += prompt_tokens * self.scan_seconds
        recent = min(float(decode_context), decodes * self.window)
        cache = decode_context * self.cache_seconds + recent * self.window_cache_seconds
        cache += decodes * self.state_seconds
        seen = decode_context * self.decode_pair_seconds
        cache = blended(cache, seen + recent * self.window_decode_pair_seconds)
        few = tokens <= VECTOR_ROWS
        matmuls += 0.0 if few else min(tokens, TILE) * self.row_wave_seconds
        reading = self.shared_read_seconds if few else self.tiled_read_seconds
        device = (
            blended(reading, matmuls)
            + experts
            + attention
            + cache
            + tokens * self.sent_seconds
            + min(tokens * self.fetching_seconds, self.piping_seconds)
            + self.fixed_device_seconds
        )
        least = self.least_prompt_seconds if prompt_tokens else self.least_device_seconds
        if not prompt_tokens and decode_context <= decodes * self.captured_context:
            least = 0.0
        host = self.fixed_host_seconds + sampled * self.sequence_seconds
        return self.pace * (max(device, least) + host)


def clock_of(hosted: Hosted, rates: Rates) -> StepClock:
    """The clock of the first case of these arrays.

    Raises:
        InputError: Its sequences are dealt out among groups of devices.
    """
    if hosted.groups[0] > 1.0:
        raise InputError("a simulation knows no attention data parallelism; leave it at 1")

    pace = float(rates.pace[0])
    rates = replace(rates, pace=np.ones_like(rates.pace))

    def of(prompts: float = 0.0, done: float = 0.0, decodes: float = 0.0) -> StepTime:
        one = {
            "prompt_tokens": prompts,
            "prompt_pairs": 0.0,
            "window_pairs": 0.0,
            "prompts_done": done,
            "decodes": decodes,
            "checked": 1.0,
            "decode_context": 0.0,
            "prompt_groups": 1.0,
        }
        work = Work(**{name: np.array([value]) for name, value in one.items()})
        return step_time(hosted.take(slice(0, 1)), rates.take(slice(0, 1)), work)

    def value(array: object) -> float:
        return float(np.asarray(array)[0])

    empty, token, head = of(), of(prompts=1.0), of(done=1.0)
    reading = read_bytes_per_second(hosted, rates) * unpacking(hosted, rates)
    pair = 2.0 / (hosted.peak_sixteen * rates.attention)
    cached = 1.0 / (hosted.bandwidth * rates.cache)
    expert_token = 2.0 * hosted.expert_products / expert_flops_per_second(hosted, rates)
    linear_token = 2.0 * hosted.shared_products / (hosted.peak * rates.gemm * rates.widened_gemm)
    sent = all_reduced_bytes(hosted) / (hosted.link * rates.link)
    eager = hosted.layers * rates.eager_seconds
    launched = np.maximum(eager, prompt_host_seconds(hosted, rates))
    return StepClock(
        shared_read_seconds=value(hosted.shared_bytes / reading),
        tiled_read_seconds=value(hosted.shared_bytes / (reading * rates.tiled)),
        expert_read_seconds=value(hosted.expert_bytes / (reading * rates.expert_memory)),
        expert_share=value(hosted.expert_share),
        evenness=value(rates.evenness),
        expert_imbalance=value(hosted.expert_imbalance),
        expert_token_seconds=value(expert_token),
        expert_tokens=value(rates.expert_tokens),
        token_seconds=value(linear_token),
        row_wave_seconds=value(row_wave_seconds(hosted, rates)),
        head_seconds=value(head.matmuls),
        sequence_seconds=value(rates.sequence_seconds),
        pair_seconds=value(hosted.pair_products * pair),
        window_pair_seconds=value(hosted.window_pair_products * pair),
        decode_pair_seconds=value(hosted.decode_pair_products * pair),
        window_decode_pair_seconds=value(hosted.window_decode_pair_products * pair),
        scan_seconds=value(2.0 * hosted.scan_products / (hosted.peak_sixteen * rates.scan)),
        state_seconds=value(2.0 * hosted.state_bytes * cached),
        cache_seconds=value(hosted.read_bytes * cached),
        window_cache_seconds=value(hosted.window_read_bytes * cached),
        window=value(hosted.window),
        sent_seconds=value(sent + token.launches - empty.launches),
        fetching_seconds=value(fetching_seconds(hosted, rates)),
        piping_seconds=value(piping_seconds(hosted, rates)),
        fixed_device_seconds=value(empty.communication + empty.launches),
        least_device_seconds=value(eager),
        captured_context=value(rates.captured_context),
        least_prompt_seconds=value(launched),
        fixed_host_seconds=value(fixed_host_seconds(hosted, rates)),
        pace=pace,
    )
