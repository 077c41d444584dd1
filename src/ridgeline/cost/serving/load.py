"""Latency and throughput of a served model under a load, from the time of its steps.

A load is one of three. *Static*: a batch starts together and ends together. *Closed loop*: so many
clients each send the next request when the last is answered. *Saturated*: requests never run out,
and memory limits how many run. With B sequences of mean prompt p and completion o running, a step
brings B tokens, and each of the B slots needs one new prompt every o tokens: prompts of B p / o
tokens come per step on average (Agrawal et al., 2403.02310, section 2). An engine runs them in
chunks of at most `chunk` tokens beside the decodes:

    f = B p / (o c)                       share of the steps that carry a chunk of c tokens
    step = (1 - f) S(B) + f S(B + c)      f <= 1; beyond, every step carries B p / o tokens

With guesses a decode brings those that are checked, too, and a step yields y tokens of each
sequence (`speculation.py`, `draft_trees.py`): slots need a new prompt every o / y steps, and
guessing takes a share of the time of the step without them.

Time to the first token: the prompt's own steps, beside the decodes, the wait for prompts that
arrived with it, and for the step that runs: a client sends its next request when it sees the last
one end, and the engine, which does not wait for it, has just begun a step; some engines look at
what has arrived in one of several steps alone. All n clients of a
closed loop start at once, and so the first of so many requests of each waits for half of the wave;
what follows is spread over a completion's time.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ridgeline.cost.arrays import Bools, Cases, Floats, Ints
from ridgeline.cost.serving.coefficients import Rates
from ridgeline.cost.serving.setting import Hosted, busiest
from ridgeline.cost.serving.step import (
    StepTime,
    Work,
    blended,
    sequences_that_fit,
    step_time,
)

MOST_TAKEN = 7.0 / 8.0
"""Share of a step's tokens that decodes take from prompts at most."""
FIRST_WAITS = 0.3
"""The share of a request's wait for the front end that its first token has: what is still to be
sent when it comes, of all that is added while it runs; read off servers whose first tokens take
longer the longer completions are."""
KINDS = ("static", "closed", "open", "saturated", "burst")
ROUNDS = 30
"""Damped rounds of finding the sequences that an open loop keeps running (Little's law)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestLengths(Cases):
    """What requests look like and what the engine allows."""

    prompt: Floats
    """Tokens of a prompt, mean."""
    completion: Floats
    """Tokens of a completion, mean, 1 or more."""
    chunk: Floats
    """Prompt tokens of one step at most; of one group of devices where prompts are balanced."""
    balance: Floats
    """Steps that a prompt waits at most for one in each other group of devices, all of which would
    wait for the one that has it; 0: it does not."""
    piece: Floats
    """Tokens of one prompt in a step at most; infinite: as many as the step takes."""
    most_sequences: Floats
    """Sequences that the engine runs at once at most."""
    reserved: Floats
    """The share of a completion that the engine keeps room for when it admits a request: 1 where it
    never evicts, 0.5 where it fills the memory with what is there and evicts when it must."""
    checked: Floats
    """Tokens that a decode brings to a step: 1, and its guesses."""
    yielded: Floats
    """Tokens that a decode yields, mean: 1, and the guesses that hold."""
    guessing: Floats
    """Time of guessing over that of the step without guesses; 0: nobody guesses."""


def steady_step(hosted: Hosted, rates: Rates, lengths: RequestLengths, running: Floats) -> StepTime:
    """The mean step while `running` sequences decode and as many prompts follow as they end."""
    arriving = running * lengths.prompt * lengths.yielded / lengths.completion
    most = np.minimum(lengths.chunk, lengths.piece)
    piece = np.maximum(np.minimum(lengths.prompt, most), 1.0)
    piece = piece * _together(
        hosted, lengths, np.minimum(running, lengths.balance * arriving / piece)
    )
    share = np.minimum(arriving / piece, 1.0)
    carried = np.maximum(arriving, piece)
    context = lengths.prompt + lengths.completion / 2.0
    plain = _step(hosted, rates, lengths, _work(hosted, lengths, 0.0 * running, running, context))
    mixed = _step(hosted, rates, lengths, _work(hosted, lengths, carried, running, context))
    names = StepTime.__dataclass_fields__
    return StepTime(
        **{
            name: (1.0 - share) * getattr(plain, name) + share * getattr(mixed, name)
            for name in names
        }
    )


def prompt_seconds(
    hosted: Hosted, rates: Rates, lengths: RequestLengths, prompts: Floats, beside: Floats
) -> Floats:
    """Steps that `prompts` prompts take while `beside` other sequences decode."""
    tokens = prompts * lengths.prompt
    # Decodes count against the tokens of a step as well, and go first.
    taken = np.minimum(busiest(hosted, beside) * lengths.checked, lengths.chunk * MOST_TAKEN)
    room = (lengths.chunk - taken) * _together(hosted, lengths, prompts)
    # No prompt ends sooner, however much room.
    own = np.ceil(lengths.prompt / np.minimum(lengths.piece, lengths.chunk))
    steps = np.maximum(np.maximum(np.ceil(tokens / room), own), 1.0)
    context = lengths.prompt + lengths.completion / 2.0
    work = _work(hosted, lengths, tokens / steps, beside, context)
    return np.asarray(steps * _step(hosted, rates, lengths, work).total)


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
    return np.asarray(rates.request_seconds + running + alone + rates.start * waiting)


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
    work = _work(hosted, lengths, none, batch, context)
    each = _step(hosted, rates, lengths, work).total / lengths.yielded
    return np.asarray(first + (lengths.completion - 1.0) * each)


def decode_seconds(hosted: Hosted, rates: Rates, lengths: RequestLengths, batch: Floats) -> Floats:
    """A step that only decodes."""
    context = lengths.prompt + lengths.completion / 2.0
    work = _work(hosted, lengths, np.zeros_like(batch), batch, context)
    return _step(hosted, rates, lengths, work).total


def _together(hosted: Hosted, lengths: RequestLengths, prompts: Floats) -> Floats:
    """How many of these prompts run beside each other, each in a group of its own."""
    groups = np.where(lengths.balance > 0.0, hosted.groups, 1.0)
    return np.asarray(np.clip(prompts, 1.0, groups))


def _step(hosted: Hosted, rates: Rates, lengths: RequestLengths, work: Work) -> StepTime:
    """A step, and the guessing for those that decode in it."""
    found = step_time(hosted, rates, work)
    if not lengths.guessing.any():
        return found
    alone = step_time(hosted, rates, replace(work, checked=np.ones_like(work.checked))).total
    guessing = np.where(work.decodes > 0.0, lengths.guessing, 0.0) * alone
    return replace(found, guesses=guessing, total=found.total + guessing)


def _work(
    hosted: Hosted, lengths: RequestLengths, prompt_tokens: Floats, decodes: Floats, context: Floats
) -> Work:
    """A step with these tokens of prompts of the usual length, taken from anywhere in them."""
    seen = np.minimum((lengths.prompt + 1.0) / 2.0, hosted.window)
    pieces = prompt_tokens / np.maximum(np.minimum(lengths.prompt, lengths.chunk), 1.0)
    return Work(
        prompt_tokens=prompt_tokens,
        prompt_pairs=prompt_tokens * (lengths.prompt + 1.0) / 2.0,
        window_pairs=prompt_tokens * seen,
        prompts_done=prompt_tokens / np.maximum(lengths.prompt, 1.0),
        decodes=decodes,
        checked=lengths.checked,
        decode_context=context,
        prompt_groups=np.clip(pieces, 1.0, hosted.groups),
    )


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
    steady = steady_step(hosted, rates, lengths, running).total
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
    each = np.where(static, alone, steady) / lengths.yielded
    whole = static_seconds(hosted, rates, lengths, running)
    late = np.where(closed, stream_wait(rates, lengths, running, first, each), 0.0)
    first = first + FIRST_WAITS * late
    each = each + (1.0 - FIRST_WAITS) * late / np.maximum(lengths.completion - 1.0, 1.0)
    cycle = first + (lengths.completion - 1.0) * each
    speed = running * lengths.completion / np.where(static, whole, cycle)
    speed = np.where(saturated & ~static, most * lengths.yielded / full, speed)
    speed = np.where(is_open & ~saturated, number * lengths.completion, speed)
    burst = kind == KINDS.index("burst")
    waves = np.maximum(number / most, 1.0)
    queued = np.where(burst, (waves - 1.0) / 2.0 * lengths.completion * each, 0.0)
    filling = 0.5 * prompt_seconds(hosted, rates, lengths, running, none)
    first = np.where(burst, queued + filling, first)
    total = waves * lengths.completion * each + filling
    speed = np.where(burst, np.where(burst, number, 1.0) * lengths.completion / total, speed)
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
