"""The mean step of an engine that serves requests of some length.

With B sequences of mean prompt p and completion o running, a step brings B tokens, and each of the
B slots needs one new prompt every o tokens: prompts of B p / o tokens come per step on average
(Agrawal et al., 2403.02310, section 2). An engine runs them in chunks of at most `chunk` tokens
beside the decodes:

    f = B p / (o c)                       share of the steps that carry a chunk of c tokens
    step = (1 - f) S(B) + f S(B + c)      f <= 1; beyond, every step carries B p / o tokens

With guesses a decode brings those that are checked, too, and a step yields y tokens of each
sequence (`speculation.py`, `draft_trees.py`): slots need a new prompt every o / y steps, and
guessing takes a share of the time of the step without them.

Everything is an array over cases, one number a case.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ridgeline.cost.arrays import Cases, Floats
from ridgeline.cost.serving.coefficients import Rates
from ridgeline.cost.serving.setting import Hosted, busiest
from ridgeline.cost.serving.step import StepTime, Work, step_time

MOST_TAKEN = 7.0 / 8.0
"""Share of a step's tokens that decodes take from prompts at most."""


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
    by_prompt: Floats
    """1 where a request is admitted as soon as there is room for its prompt, else 0."""
    checked: Floats
    """Tokens that a decode brings to a step: 1, and its guesses."""
    yielded: Floats
    """Tokens that a decode yields, mean: 1, and the guesses that hold."""
    guessing: Floats
    """Time of guessing over that of the step without guesses; 0: nobody guesses."""
    prompts_first: Floats
    """1 where decodes wait while any prompt does, else 0."""
    lockstep: Floats
    """1 where clients of a closed loop stay together, all of one length and prompts first; else
    0."""
    varied: Floats
    """How far completions differ: 0 where all are alike, 1 where they are as conversations are,
    exponentially distributed."""
    even: Floats
    """1 where lengths are spread evenly from nothing to twice their mean, else 0."""
    rounds: Floats
    """Requests of each client of a closed loop until the run ends; infinite: it does not."""
    together: Floats
    """Share of a closed loop's requests that are sent when all clients start and whose prompts are
    new to the engine; not a number: not stated, as `Rates.start` has it."""


def steady_step(
    hosted: Hosted,
    rates: Rates,
    lengths: RequestLengths,
    running: Floats,
    followed: Floats | None = None,
) -> StepTime:
    """The mean step while `running` sequences decode and as many prompts follow as they end.

    Args:
        hosted: The replica.
        rates: Of its device and engine.
        lengths: Of its requests.
        running: Sequences that decode.
        followed: Those whose followers' prompts are counted; by default all. What a client waits
            for between its tokens are the prompts of the others.
    """
    followed = running if followed is None else followed
    arriving = followed * lengths.prompt * lengths.yielded / lengths.completion
    most = np.minimum(lengths.chunk, lengths.piece)
    piece = np.maximum(np.minimum(lengths.prompt, most), 1.0)
    piece = piece * run_together(
        hosted, lengths, np.minimum(running, lengths.balance * arriving / piece)
    )
    share = np.minimum(arriving / piece, 1.0)
    carried = np.maximum(arriving, piece)
    context = lengths.prompt + lengths.completion / 2.0
    plain = step_of(
        hosted, rates, lengths, work_of(hosted, lengths, 0.0 * running, running, context)
    )
    mixed = step_of(hosted, rates, lengths, work_of(hosted, lengths, carried, running, context))
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
    room = (lengths.chunk - taken) * run_together(hosted, lengths, prompts)
    # No prompt ends sooner, however much room.
    own = np.ceil(lengths.prompt / np.minimum(lengths.piece, lengths.chunk))
    steps = np.maximum(np.maximum(np.ceil(tokens / room), own), 1.0)
    context = lengths.prompt + lengths.completion / 2.0
    work = work_of(hosted, lengths, tokens / steps, beside, context)
    return np.asarray(steps * step_of(hosted, rates, lengths, work).total)


def decode_seconds(hosted: Hosted, rates: Rates, lengths: RequestLengths, batch: Floats) -> Floats:
    """A step that only decodes."""
    context = lengths.prompt + lengths.completion / 2.0
    work = work_of(hosted, lengths, np.zeros_like(batch), batch, context)
    return step_of(hosted, rates, lengths, work).total


def run_together(hosted: Hosted, lengths: RequestLengths, prompts: Floats) -> Floats:
    """How many of these prompts run beside each other, each in a group of its own."""
    groups = np.where(lengths.balance > 0.0, hosted.groups, 1.0)
    return np.asarray(np.clip(prompts, 1.0, groups))


def step_of(hosted: Hosted, rates: Rates, lengths: RequestLengths, work: Work) -> StepTime:
    """A step, and the guessing for those that decode in it."""
    found = step_time(hosted, rates, work)
    if not lengths.guessing.any():
        return found
    alone = step_time(hosted, rates, replace(work, checked=np.ones_like(work.checked))).total
    guessing = np.where(work.decodes > 0.0, lengths.guessing, 0.0) * alone
    return replace(found, guesses=guessing, total=found.total + guessing)


def work_of(
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
