"""Prefill and decode on devices of their own: two pools, and the way of the cache between them.

    first token    its prompt's steps in the prefill pool, the wait for prompts that arrived with
                   it there, the cache's way to the decode pool, one step there
    next token     a step of the decode pool that carries no prompt
    throughput     what the slower pool serves: P / prefill seconds, or D n o / decode seconds

The cache of a prompt leaves over the network of the devices that computed it, all at once (Zhong
et al., "DistServe", 2401.09670, section 4; Patel et al., "Splitwise", 2311.18677, section 4.2).

Everything is an array over cases, one number a case.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ridgeline.cost.arrays import Cases, Floats
from ridgeline.cost.serving.coefficients import Rates
from ridgeline.cost.serving.load import LoadOutcome, most_running, wave_seconds
from ridgeline.cost.serving.mean_steps import RequestLengths, decode_seconds, prompt_seconds
from ridgeline.cost.serving.setting import Hosted, cached_bytes
from ridgeline.cost.serving.step import sequences_that_fit

NETWORK_BYTES_PER_SECOND = 50e9
"""The network of one device: a port of 400 Gb/s each, as in all systems that are sold for this
(NVIDIA DGX H100 and GB200 NVL72 data sheets)."""


ROUNDS = 12
"""Damped rounds of finding the sequences that prefill keeps running."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerPool(Cases):
    """Replicas that do one of the two."""

    hosted: Hosted
    workers: Floats
    most_sequences: Floats
    """Sequences of one group of devices at most; infinite where it is not stated."""


def disaggregated_outcome(
    prefill: WorkerPool, decode: WorkerPool, rates: Rates, lengths: RequestLengths, clients: Floats
) -> LoadOutcome:
    """What a closed loop of so many clients sees of two pools."""
    clients = np.where(np.isfinite(clients), clients, 1.0)
    one, none = np.ones_like(clients), np.zeros_like(clients)
    alone = prompt_seconds(prefill.hosted, rates, lengths, one, none)
    share = np.maximum(clients / prefill.workers, 1.0)
    waiting = rates.start * wave_seconds(prefill.hosted, rates, lengths, share)
    handed = rates.handover_seconds + transfer_seconds(prefill, lengths)
    full = prompt_seconds(prefill.hosted, rates, lengths, prefill.hosted.groups, none)
    prompts_per_second = prefill.workers * prefill.hosted.groups / full
    allowed = replace(lengths, most_sequences=decode.most_sequences * decode.hosted.groups)
    most = np.maximum(most_running(decode.hosted, rates, allowed), 1.0)
    each = np.minimum(clients / decode.workers, most)
    running = _fed(decode, rates, lengths, each, prompts_per_second / decode.workers)
    step = decode_seconds(decode.hosted, rates, lengths, running)
    first = rates.request_seconds + alone + waiting + handed + step
    cycle = first + (lengths.completion - 1.0) * step
    served = running * decode.workers * lengths.completion / cycle
    prompts = prompts_per_second * lengths.completion
    fits = sequences_that_fit(decode.hosted, rates, lengths.prompt + lengths.completion) >= 1.0
    return LoadOutcome(
        first_token_seconds=first,
        next_token_seconds=step,
        tokens_per_second=np.minimum(served, prompts),
        running=running,
        saturated=(clients / decode.workers > most) | (running < each) | (served > prompts),
        fits=fits,
    )


def _fed(
    decode: WorkerPool,
    rates: Rates,
    lengths: RequestLengths,
    most: Floats,
    prompts_per_second: Floats,
) -> Floats:
    """Sequences that run in one decode worker.

    `most`, or those that prefill brings before others end (Little's law).
    """
    running = most
    for _ in range(ROUNDS):
        seconds = lengths.completion * decode_seconds(decode.hosted, rates, lengths, running)
        running = 0.5 * running + 0.5 * np.minimum(most, prompts_per_second * seconds)
    return np.asarray(np.maximum(running, np.minimum(most, 1.0)))


def transfer_seconds(prefill: WorkerPool, lengths: RequestLengths) -> Floats:
    """Time in which one prompt's cache leaves the devices that computed it."""
    sent = cached_bytes(prefill.hosted, lengths.prompt)
    return np.asarray(sent / NETWORK_BYTES_PER_SECOND)
