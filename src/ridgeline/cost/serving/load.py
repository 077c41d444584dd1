"""Latency and throughput of a served model under a load, from the time of its steps.

A load is one of five. *Static*: a batch starts together and ends together. *Closed loop*: so many
clients each send the next request when the last is answered. *Open loop*: requests come at a rate.
*Saturated*: requests never run out, and memory limits how many run. *Burst*: so many come at once
(`burst.py`). The mean step of each is that of `mean_steps.py`.

Time to the first token: the prompt's own steps, beside the decodes, the wait for prompts that
arrived with it, and for the step that runs: a client sends its next request when it sees the last
one end, and the engine, which does not wait for it, has just begun a step; some engines look at
what has arrived in one of several steps alone. All n clients of a
closed loop start at once, and so the first of so many requests of each waits for half of the wave;
what follows is spread over a completion's time. Where all requests are of one length and an engine
runs prompts before decodes, those that were answered together ask together again: each wave waits
for its prompts, decodes stand still meanwhile, and no prompt comes beside them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ridgeline.cost.arrays import Bools, Floats, Ints
from ridgeline.cost.serving.burst import burst_outcome
from ridgeline.cost.serving.coefficients import Rates
from ridgeline.cost.serving.mean_steps import (
    RequestLengths,
    decode_seconds,
    prompt_seconds,
    steady_step,
    step_of,
    work_of,
)
from ridgeline.cost.serving.setting import Hosted
from ridgeline.cost.serving.step import blended, sequences_that_fit

FIRST_WAITS = 0.3
"""The share of a request's wait for the front end that its first token has: what is still to be
sent when it comes, of all that is added while it runs; read off servers whose first tokens take
longer the longer completions are."""
EULER = 0.5772
"""What harmonic numbers exceed logarithms by (the Euler-Mascheroni constant)."""
KINDS = ("static", "closed", "open", "saturated", "burst")
ROUNDS = 30
"""Damped rounds of finding the sequences that an open loop keeps running (Little's law)."""


def first_token_seconds(
    hosted: Hosted, rates: Rates, lengths: RequestLengths, clients: Floats
) -> Floats:
    """Mean time to the first token in a closed loop that memory can hold."""
    others = np.maximum(clients - 1.0, 0.0)
    one = np.ones_like(clients)
    alone = prompt_seconds(hosted, rates, lengths, one, others)
    waiting = wave_seconds(hosted, rates, lengths, clients)
    running = np.where(others > 0.0, decode_seconds(hosted, rates, lengths, others), 0.0)
    running = running * (rates.receive_steps + 1.0) / 2.0
    start = np.where(np.isnan(lengths.together), rates.start, lengths.together)
    share = np.maximum(start, lengths.lockstep)
    return np.asarray(rates.request_seconds + running + alone + share * waiting)


def wave_seconds(hosted: Hosted, rates: Rates, lengths: RequestLengths, clients: Floats) -> Floats:
    """Mean wait of one of so many prompts that come at once for those before it.

    Steps carry as many of them as fit into a chunk, so that what they share is paid once a step;
    but those that come while a step runs fill the next one only in part: taken as half of the way
    between chunks that are full and prompts one by one. One by one, all groups of devices wait for
    the one that has the prompt.
    """
    none = np.zeros_like(clients)
    packed = prompt_seconds(hosted, rates, lengths, clients, none)
    one = prompt_seconds(hosted, rates, lengths, np.ones_like(clients), none)
    whole = (packed + clients * one) / 2.0
    return np.asarray(np.maximum(whole - one, 0.0) / 2.0)


def emptying_rounds(lengths: RequestLengths, clients: Floats) -> Floats:
    """How much longer a closed loop lasts than its work on all places, in mean requests.

    When no request is left, places empty as theirs end: the longest of n rests outlasts the mean
    rest. Rests of even lengths are 2/3 of a mean request and at most 2, of exponential ones 1 and
    as long as the harmonic number of n.
    """
    most = np.maximum(clients, 1.0)
    even = 4.0 / 3.0 * (1.0 - 1.0 / np.sqrt(most))
    exponential = np.maximum(np.log(most) + EULER + 0.5 / most - 1.0, 0.0)
    return np.asarray(np.where(lengths.even > 0.0, even, lengths.varied * exponential))


def stream_wait(
    rates: Rates, lengths: RequestLengths, running: Floats, first: Floats, each: Floats
) -> Floats:
    """What a request takes longer because the front end sends one token after another.

    Device and front end work beside each other, so that the slower of the two decides: blended as
    other things that overlap.
    """
    cycle = first + (lengths.completion - 1.0) * each
    sending = running * lengths.completion * rates.stream_seconds
    return np.asarray(blended(cycle, sending) - cycle)


def most_running(hosted: Hosted, rates: Rates, lengths: RequestLengths) -> Floats:
    """Sequences that run at saturation: what memory holds as admitted, or the engine's limit."""
    context = lengths.prompt + lengths.completion * lengths.reserved + lengths.checked - 1.0
    held = sequences_that_fit(hosted, rates, context) * rates.occupancy
    return np.asarray(np.minimum(held, lengths.most_sequences))


def static_seconds(hosted: Hosted, rates: Rates, lengths: RequestLengths, batch: Floats) -> Floats:
    """A batch from start to end: its prompts, then a step for each further token."""
    none = np.zeros_like(batch)
    context = lengths.prompt + lengths.completion / 2.0
    first = prompt_seconds(hosted, rates, lengths, batch, none)
    work = work_of(hosted, lengths, none, batch, context)
    each = step_of(hosted, rates, lengths, work).total / lengths.yielded
    return np.asarray(first + (lengths.completion - 1.0) * each)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadOutcome:
    """What each case shows under its load, whatever is published of it."""

    first_token_seconds: Floats
    next_token_seconds: Floats
    """Mean over a request of the time between its tokens."""
    tokens_per_second: Floats
    """Tokens of completions, of one replica."""
    running: Floats
    """Sequences that decode at once."""
    saturated: Bools
    """Requests wait for a place: the time to the first token grows with the length of the run."""
    fits: Bools
    """The weights and at least one sequence fit in the memory."""


def outcome_of(
    hosted: Hosted, rates: Rates, lengths: RequestLengths, kind: Ints, number: Floats
) -> LoadOutcome:
    """The same for arrays of cases."""
    static, is_open = kind == KINDS.index("static"), kind == KINDS.index("open")
    most = np.maximum(most_running(hosted, rates, lengths), 1.0)
    full = steady_step(hosted, rates, lengths, most).total
    wanted = np.where(is_open, _open_running(hosted, rates, lengths, number, most, is_open), number)
    held = np.maximum(sequences_that_fit(hosted, rates, lengths.prompt + lengths.completion), 1.0)
    limit = np.where(static, held, most)
    running = np.minimum(wanted, limit)
    # Clients that start together reach their longest together: a closed loop needs room for whole
    # completions, whatever the engine admits.
    closed = kind == KINDS.index("closed")
    most_whole = np.minimum(held * rates.occupancy, lengths.most_sequences)
    saturated = np.where(static, number > held, wanted >= np.where(closed, np.inf, limit))
    saturated = saturated | (closed & (number > np.minimum(most_whole, limit)))
    # A client's own next prompt comes when its completion is there: only others' delay its tokens.
    followed = np.where(closed, np.maximum(running - 1.0, 0.0), running)
    steady = steady_step(hosted, rates, lengths, running, followed).total
    alone = decode_seconds(hosted, rates, lengths, running)
    none = np.zeros_like(running)
    batch_first = prompt_seconds(hosted, rates, lengths, running, none) + rates.request_seconds
    # An open loop's requests come one by one: what waits is the rest of a step, not a bunch.
    open_first = (
        prompt_seconds(hosted, rates, lengths, np.ones_like(running), running)
        + rates.request_seconds
        + 0.5 * steady
    )
    closed_first = first_token_seconds(hosted, rates, lengths, running)
    first = np.where(static, batch_first, np.where(is_open, open_first, closed_first))
    together = np.where(closed, lengths.lockstep, 0.0)
    waited = wave_seconds(hosted, rates, lengths, running) / lengths.completion
    beside = (1.0 - together) * steady + together * (alone + waited * lengths.yielded)
    each = np.where(static, alone, beside) / lengths.yielded
    whole = static_seconds(hosted, rates, lengths, running)
    late = np.where(closed, stream_wait(rates, lengths, running, first, each), 0.0)
    first = first + FIRST_WAITS * late
    each = each + (1.0 - FIRST_WAITS) * late / np.maximum(lengths.completion - 1.0, 1.0)
    cycle = first + (lengths.completion - 1.0) * each
    single = decode_seconds(hosted, rates, lengths, np.ones_like(running))
    ending = emptying_rounds(lengths, running) * (1.0 + single / alone) / 2.0
    cycle = np.where(closed, cycle * (1.0 + ending / lengths.rounds), cycle)
    speed = running * lengths.completion / np.where(static, whole, cycle)
    speed = np.where(saturated & ~static, most * lengths.yielded / full, speed)
    speed = np.where(is_open & ~saturated, number * lengths.completion, speed)
    burst = kind == KINDS.index("burst")
    if burst.any():
        parts = hosted.take(burst), rates.take(burst), lengths.take(burst)
        shown = burst_outcome(*parts, number[burst], most[burst])
        first[burst], each[burst] = shown.first_token_seconds, shown.next_token_seconds
        speed[burst], running[burst] = shown.tokens_per_second, shown.running
    return LoadOutcome(
        first_token_seconds=first,
        next_token_seconds=each,
        tokens_per_second=speed,
        running=running,
        saturated=saturated & ~burst,
        fits=sequences_that_fit(hosted, rates, lengths.prompt + lengths.completion) >= 1.0,
    )


def _open_running(
    hosted: Hosted,
    rates: Rates,
    lengths: RequestLengths,
    rate: Floats,
    most: Floats,
    is_open: Bools,
) -> Floats:
    """Sequences that requests at a rate keep running: rate x completion x seconds per token."""
    running = np.ones_like(most)
    if not is_open.any():
        return running
    some = np.ones_like(most)[is_open]
    limit, per_second = most[is_open], (rate * lengths.completion)[is_open]
    parts = hosted.take(is_open), rates.take(is_open), lengths.take(is_open)
    for _ in range(ROUNDS):
        seconds = steady_step(*parts, np.minimum(some, limit)).total / parts[2].yielded
        some = 0.5 * some + 0.5 * per_second * seconds
    running[is_open] = some
    return running
