"""Requests that all come at once: their prompts, a full engine, and its last sequences.

    fill      the first n prompts, n what memory holds, beside n / 2 decodes that have begun
    plateau   n sequences decode, and a prompt follows each that ends; where all are alike they end
              together, and the last generation is what is left
    drain     no prompt is left and sequences end: as they began where all are alike, and where
              they are as long as conversations (exponentially distributed) o / k steps pass before
              the k-th from the last ends, o ln n in all

n is no more than prompts can be brought for while completions last, o c / p with chunks of c
tokens: prompts that take longer than completions leave few sequences running. The mean time per
token is what passes while a sequence decodes over its tokens, so that of unequal ones the short
count as much as the long: of an exponential length a step of age u has the weight E1(u / o) / o,
which begins where prompts still run. Engines that run prompts before decodes let those that were
answered wait for all that have come, a short one for as long as a long one.

An engine that admits by the room of a prompt begins b sequences where n fit whole. As they grow to
a length l memory holds C / l of them, C = n (p + o), and those that are sent back lose their
caches: the tokens that are computed again are the integral of l C / l^2, C ln(b / n). Of r requests
the i-th generation of n ends after i completions and begins with the first or b / n before its end:
it is under way b / n - 1 completions longer than it runs, and those of the first b half as long.

Everything is an array over cases, one number a case.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from ridgeline.cost.arrays import Cases, Floats
from ridgeline.cost.serving.coefficients import Rates
from ridgeline.cost.serving.mean_steps import (
    RequestLengths,
    steady_step,
    step_of,
    work_of,
)
from ridgeline.cost.serving.setting import Hosted
from ridgeline.cost.serving.step import blended, sequences_that_fit

POINTS = 12
"""Numbers of sequences at which the steps of a drain are worked out; in between they are smooth."""
STARTS = 5
"""Times at which sequences begin, within the fill and within the plateau."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BurstOutcome(Cases):
    """What a burst shows."""

    first_token_seconds: Floats
    next_token_seconds: Floats
    tokens_per_second: Floats
    running: Floats
    """Sequences of the plateau."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BurstPhase:
    """A part of a burst."""

    steps: Floats
    seconds: Floats
    tokens: Floats
    """The tokens that are decoded in it."""
    lived: Floats
    """Seconds of all sequences that decode in it."""

    @property
    def step_seconds(self) -> Floats:
        """The mean time of its steps."""
        return np.asarray(self.seconds / np.maximum(self.steps, 1e-9))


Seconds = Callable[[Floats | float, Floats], Floats]
"""Prompt tokens and decodes → the time of their step."""


def burst_outcome(
    hosted: Hosted, rates: Rates, lengths: RequestLengths, requests: Floats, most: Floats
) -> BurstOutcome:
    """A burst of so many requests, of which an engine runs `most` at once.

    While prompts wait, every group of devices has one, and none waits for another's.
    """
    groups = np.clip(requests, 1.0, hosted.groups)

    def seconds(prompt_tokens: Floats | float, decodes: Floats) -> Floats:
        context = lengths.prompt + lengths.completion / 2.0
        tokens = np.zeros_like(decodes) + prompt_tokens
        work = work_of(hosted, lengths, tokens, decodes, context)
        return step_of(hosted, rates, lengths, replace(work, prompt_groups=groups)).total

    steps = lengths.completion / lengths.yielded
    chunk = lengths.chunk * groups
    brought = steps * chunk / lengths.prompt
    most = np.minimum(most, _grown(hosted, rates, lengths, requests / brought))
    held = np.minimum(np.minimum(requests, most), np.maximum(brought, 1.0))
    carried = np.minimum(chunk, held * lengths.prompt)
    waits = lengths.prompts_first
    fill = _fill(seconds, held, held * lengths.prompt / carried, carried, steps, waits)
    drain = _drain(seconds, held, fill, requests, steps, lengths.varied)
    riding = (steady_step(hosted, rates, lengths, held).total - seconds(0.0, held)) * steps / held
    packed = (seconds(carried, held) - seconds(0.0, held)) * lengths.prompt / carried
    ahead = admitted_ahead(hosted, rates, lengths, requests, most)
    again = held * (lengths.prompt + lengths.completion) * np.log(ahead)
    together = (1.0 - lengths.varied) * (1.0 - np.minimum(fill.steps / steps, 1.0))
    plateau = _plateau(
        seconds,
        held,
        tokens=np.maximum(requests * steps - fill.tokens - drain.tokens, 0.0),
        last=together * np.maximum(requests - (np.ceil(requests / held - 1e-9) - 1.0) * held, 1.0),
        steps=steps,
        prompts=np.maximum(requests - held, 0.0) * (together * packed + (1.0 - together) * riding)
        + again / lengths.prompt * packed,
    )

    whole = fill.seconds + plateau.seconds + drain.seconds
    sent = requests * lengths.completion * rates.stream_seconds
    slower = blended(whole, sent) / whole
    share = held / requests
    stalled = share * waits * fill.seconds / 2.0 * np.log(steps + 1.0) / steps
    equal = (fill.lived + plateau.lived + drain.lived) / (requests * steps)
    decoding = replace(fill, steps=fill.steps * (1.0 - waits))
    unequal = stalled + _mean_over_requests(decoding, plateau, drain, share, steps)
    each = lengths.varied * unequal + (1.0 - lengths.varied) * equal
    late = fill.seconds + plateau.seconds / 2.0
    first = share * fill.seconds / 2.0 + (1.0 - share) * late
    soonest = np.minimum(ahead * fill.seconds / 2.0, first)
    begun = np.minimum(ahead * held / requests, 1.0)
    moved = np.minimum((ahead - 1.0) * (1.0 - begun / 2.0) * each * steps, first - soonest)
    return BurstOutcome(
        first_token_seconds=slower * (first - moved) + rates.request_seconds,
        next_token_seconds=slower * (each + moved / steps) / lengths.yielded,
        tokens_per_second=requests * lengths.completion / (slower * whole),
        running=held,
    )


def _grown(hosted: Hosted, rates: Rates, lengths: RequestLengths, apart: Floats) -> Floats:
    """Sequences that memory holds when they are longest, by how far apart their ages are.

    Args:
        hosted: What runs where.
        rates: Its coefficients.
        lengths: Of the requests.
        apart: The age of the oldest when the youngest begins, in completions; those whose lengths
            differ are of all ages.
    """
    differing = np.maximum(lengths.varied, lengths.even)
    spread = np.maximum(differing, np.minimum(apart, 1.0))
    longest = lengths.prompt + lengths.completion * (1.0 - spread / 2.0)
    return np.asarray(np.maximum(sequences_that_fit(hosted, rates, longest) * rates.occupancy, 1.0))


def admitted_ahead(
    hosted: Hosted, rates: Rates, lengths: RequestLengths, requests: Floats, most: Floats
) -> Floats:
    """Sequences that have begun over those that memory lets run.

    An engine that admits by the room of a prompt takes in more than it can finish, answers each
    with a first token and then sends the latest back to wait: what is no wait for the first token
    is one for the others.
    """
    room = sequences_that_fit(hosted, rates, lengths.prompt) * rates.occupancy
    room = np.minimum(room, lengths.most_sequences)
    begun = np.minimum(requests, np.where(lengths.by_prompt > 0.0, room, most))
    return np.asarray(np.maximum(begun / np.minimum(requests, most), 1.0))


def _fill(
    seconds: Seconds,
    held: Floats,
    prompt_steps: Floats,
    carried: Floats,
    steps: Floats,
    waits: Floats,
) -> BurstPhase:
    """The first prompts, in full chunks, beside half of the sequences that they become.

    Where decodes wait for prompts they begin when the last of these is done.
    """
    taken = np.maximum(prompt_steps, 1.0)
    beside = (1.0 - waits) * held / 2.0
    spent = taken * seconds(carried, beside)
    return BurstPhase(
        steps=taken,
        seconds=spent,
        tokens=beside * np.minimum(taken, steps),
        lived=held / 2.0 * spent,
    )


def _plateau(
    seconds: Seconds,
    held: Floats,
    *,
    tokens: Floats,
    last: Floats,
    steps: Floats,
    prompts: Floats,
) -> BurstPhase:
    """The time in which the engine is full.

    Args:
        seconds: Of a step.
        held: Sequences that run.
        tokens: Those decoded in it.
        last: Sequences of a last generation that does not fill the engine, as far as there is one.
        steps: Of a completion.
        prompts: What all later prompts add to the steps that carry them.
    """
    fewer = np.minimum(last * steps, tokens)
    few = np.maximum(last, 1.0)
    full = (tokens - fewer) / held
    spent = full * seconds(0.0, held) + fewer / few * seconds(0.0, few) + prompts
    taken = full + fewer / few
    running = tokens / np.maximum(taken, 1e-9)
    return BurstPhase(steps=taken, seconds=spent, tokens=tokens, lived=running * spent)


def _drain(
    seconds: Seconds,
    held: Floats,
    fill: BurstPhase,
    requests: Floats,
    steps: Floats,
    varied: Floats,
) -> BurstPhase:
    """The last sequences end, in the order in which they began or those that last longest last."""
    ordered = np.minimum(fill.steps, steps)
    alike = ordered * seconds(0.0, held / 2.0)
    lasting, lived = _emptying(seconds, held)
    left = np.maximum(requests * steps - fill.tokens, 0.0)
    whole = varied * np.minimum(left / (held * steps), 1.0)
    equal = 1.0 - varied
    return BurstPhase(
        steps=equal * ordered + whole * steps * np.log(held + 1.0),
        seconds=equal * alike + whole * steps * lasting,
        tokens=equal * held * ordered / 2.0 + whole * held * steps,
        lived=equal * alike * held / 2.0 + whole * steps * lived,
    )


def _emptying(seconds: Seconds, held: Floats) -> tuple[Floats, Floats]:
    """Sums over k from 1 to `held` of D(k) / k and of D(k), with D a step of k sequences.

    Both are integrals over the logarithm of k, by Gauss and Legendre.
    """
    nodes, weights = np.polynomial.legendre.leggauss(POINTS)
    span = np.log(np.maximum(held, 1.0) + 0.5) - np.log(0.5)
    lasting, lived = np.zeros_like(held), np.zeros_like(held)
    for node, weight in zip(nodes.tolist(), weights.tolist(), strict=True):
        number = 0.5 * np.exp(span * (node + 1.0) / 2.0)
        step = seconds(0.0, np.maximum(number, 1.0))
        lasting += weight * span / 2.0 * step
        lived += weight * span / 2.0 * step * number
    return lasting, lived


def _mean_over_requests(
    fill: BurstPhase, plateau: BurstPhase, drain: BurstPhase, share: Floats, steps: Floats
) -> Floats:
    """Mean time per token of requests of exponential lengths, short ones and long ones alike.

    Args:
        fill: The first prompts.
        plateau: A full engine.
        drain: The last sequences.
        share: Of the requests that begin in the fill.
        steps: Mean steps of a completion.
    """
    last = drain.lived / np.maximum(drain.tokens, 1e-9)
    nodes, weights = np.polynomial.legendre.leggauss(STARTS)
    mean = np.zeros_like(share)
    for node, weight in zip((nodes + 1.0) / 2.0, weights / 2.0, strict=True):
        to_come = fill.steps * (1.0 - node)
        early = _weight_before(to_come / steps)
        later = _weight_before((to_come + plateau.steps) / steps)
        begun_early = early * fill.step_seconds + (later - early) * plateau.step_seconds
        begun_early = begun_early + (1.0 - later) * last
        within = _weight_before(plateau.steps * (1.0 - node) / steps)
        begun_late = within * plateau.step_seconds + (1.0 - within) * last
        mean += weight * (share * begun_early + (1.0 - share) * begun_late)
    return mean


def _weight_before(age: Floats) -> Floats:
    """The integral of E1 up to here, 1 - exp(-x) + x E1(x), within 0.004.

    >>> _weight_before(np.array([0.1, 1.0])).round(2)
    array([0.28, 0.85])
    """
    return np.asarray(1.0 - np.exp(-1.904 * np.maximum(age, 0.0) ** 0.768))
