"""The time of one step after another, for a simulation: one case, plain numbers, no arrays.

The same formula as `step.step_time`, with everything that does not change from step to step
worked out once; a test holds the two together. One call takes about a microsecond.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ridgeline.cost.serving.coefficients import Rates
from ridgeline.cost.serving.setting import Hosted
from ridgeline.cost.serving.step import StepTime, Work, blended, step_time


@dataclass(frozen=True, slots=True, kw_only=True)
class StepClock:
    """Seconds of a step of one replica, by what the step computes."""

    shared_read_seconds: float = 0.0
    expert_read_seconds: float = 0.0
    """Time of reading all routed experts."""
    expert_missed: float = 0.0
    """Share of the experts that one token is not sent to."""
    token_seconds: float = 0.0
    """Matmuls of one token."""
    head_seconds: float = 0.0
    """Matmuls of the head for one sequence that is sampled."""
    sequence_seconds: float = 0.0
    """Host time of the same."""
    pair_seconds: float = 0.0
    window_pair_seconds: float = 0.0
    cache_seconds: float = 0.0
    """Reading one token of the cache, layers of full attention."""
    window_cache_seconds: float = 0.0
    window: float = math.inf
    sent_seconds: float = 0.0
    """Time of all-reduces, per token."""
    fixed_device_seconds: float = 0.0
    """Latency of all-reduces, starting of kernels."""
    least_device_seconds: float = 0.0
    """The least time of a step without prompts: what the host needs to launch it."""
    least_prompt_seconds: float = 0.0
    """The same with prompts."""
    fixed_host_seconds: float = 0.0

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
        met: float = 1.0 - self.expert_missed**tokens
        read = self.shared_read_seconds + self.expert_read_seconds * met
        matmuls = tokens * self.token_seconds + sampled * self.head_seconds
        seen = min(prompt_pairs, prompt_tokens * self.window)
        attention = prompt_pairs * self.pair_seconds + seen * self.window_pair_seconds
        recent = min(float(decode_context), decodes * self.window)
        cache = decode_context * self.cache_seconds + recent * self.window_cache_seconds
        device = (
            blended(read, matmuls)
            + attention
            + cache
            + tokens * self.sent_seconds
            + self.fixed_device_seconds
        )
        least = self.least_prompt_seconds if prompt_tokens else self.least_device_seconds
        host = self.fixed_host_seconds + sampled * self.sequence_seconds
        return max(device, least) + host


def clock_of(hosted: Hosted, rates: Rates) -> StepClock:
    """The clock of the first case of these arrays."""

    def of(prompts: float = 0.0, done: float = 0.0, decodes: float = 0.0) -> StepTime:
        one = {
            "prompt_tokens": prompts,
            "prompt_pairs": 0.0,
            "window_pairs": 0.0,
            "prompts_done": done,
            "decodes": decodes,
            "decode_context": 0.0,
        }
        work = Work(**{name: np.array([value]) for name, value in one.items()})
        return step_time(hosted.take(slice(0, 1)), rates.take(slice(0, 1)), work)

    def value(array: object) -> float:
        return float(np.asarray(array)[0])

    empty, token, head = of(), of(prompts=1.0), of(done=1.0)
    reading = hosted.bandwidth * rates.memory * rates.unpack
    pair = 2.0 / (hosted.peak_sixteen * rates.attention)
    cached = 1.0 / (hosted.bandwidth * rates.cache)
    launched = rates.prompt_seconds + hosted.routed * rates.prompt_routing_seconds
    return StepClock(
        shared_read_seconds=value(hosted.shared_bytes / reading),
        expert_read_seconds=value(hosted.expert_bytes / reading),
        expert_missed=1.0 - value(hosted.expert_share),
        token_seconds=value(token.matmuls),
        head_seconds=value(head.matmuls),
        sequence_seconds=value(rates.sequence_seconds),
        pair_seconds=value(hosted.pair_products * pair),
        window_pair_seconds=value(hosted.window_pair_products * pair),
        cache_seconds=value(hosted.cache_bytes * cached),
        window_cache_seconds=value(hosted.window_cache_bytes * cached),
        window=value(hosted.window),
        sent_seconds=value(token.communication - empty.communication),
        fixed_device_seconds=value(empty.communication + empty.launches),
        least_device_seconds=value(hosted.layers * rates.eager_seconds),
        least_prompt_seconds=value(hosted.layers * np.maximum(rates.eager_seconds, launched)),
        fixed_host_seconds=value(rates.step_seconds),
    )
