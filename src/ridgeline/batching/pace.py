"""How much of prompts goes beside answers that are being written, so that steps keep a time.

A step takes what its decodes take, and a little for each token of a prompt. Both are measured as
steps go by: the middle of the last steps without prompts and with about as many decodes, and of the
time a token that those with prompts took beyond it, which grows with what the token looks back at:
so of those about as far into their prompts. What is left of the target says how many tokens fit.

Where no target in seconds is given, a step with prompts may take `LONGER` times as long as one
without, so that a long prompt takes about twice as long as alone. That would starve the prompts
behind it where few decode: their steps are short, and so would chunks be. So it is bounded below:
chunks are large enough that all that are behind the first would be done in `MOST_STEPS`.

Steps waver, and middles alone would let every second one take longer than its target. So how much
longer steps took than was foretold is remembered, too, and the target made shorter by what nine
in ten of them stay below.

Where every step has prompts, nothing would say what decodes take alone: then one step in
`KNOWN_FOR_STEPS` goes without.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from statistics import median

from ridgeline.batching.blocks import BlockCache
from ridgeline.batching.policies import Limits
from ridgeline.batching.sequence import Sequence, Step

LONGER = 2.0
"""How long a step with prompts may take, over one without, where no target is given."""
LEAST_TOKENS = 16
"""Prompts go on, however far steps are from a target that is given."""
LEAST_UNASKED = 4
"""Prompts go on where no target is given: deep in a long one few tokens take a step's time."""
FIRST_TOKENS = 64
"""The tokens of a chunk before anything is known."""
MOST_STEPS = 32
"""The steps in which all prompts behind the first would be done, where no target is given."""
KNOWN_FOR_STEPS = 16
REMEMBERED_STEPS = 32
WITHIN = 0.9
"""The share of steps with prompts that keep their target."""
MOST_MARGIN = 1.25
"""How much shorter than its target a step is made at most: where steps waver by more, others have
the machine, and shorter ones would only starve the prompts."""
NEAREST_STEPS = 7
"""Remembered steps whose middle stands for a number of decodes, or for a place in a prompt."""


def tokens_of(prompts: Iterable[Sequence]) -> int:
    """The tokens of whole sequences whose prompts are not computed to their ends."""
    return sum([len(one.tokens) for one in prompts])


def prompts_beside_decodes(step: Step) -> tuple[int, int, int]:
    """Tokens of prompts, sequences that decode, and how far into its prompt the first one begins.

    Args:
        step: Not completed yet.
    """
    prompts = decodes = place = 0
    for sequence, start, count, *_ in step.slices:
        if start + count < len(sequence.tokens) or count > 1:
            place = place if prompts else start
            prompts += count
        else:
            decodes += 1
    return prompts, decodes, place


def pace_of(limits: Limits, target_seconds: float | None = None) -> StepPace | None:
    """What cuts prompts beside decodes; None where they come whole, or all begin together."""
    if not limits.chunked_prefill or limits.batching != "continuous":
        return None
    return StepPace(limits.max_tokens_per_step, target_seconds)


class StepPace:
    """The prompt tokens of a step beside decodes, from the times of the last ones."""

    def __init__(self, most_tokens: int, target_seconds: float | None = None) -> None:
        self._most_tokens = most_tokens
        self._target_seconds = target_seconds
        self._decoding: deque[tuple[int, float]] = deque(maxlen=REMEMBERED_STEPS)
        """Decodes and seconds of steps without prompts, the last one first."""
        self._prompts: deque[tuple[float, int, int]] = deque(maxlen=REMEMBERED_STEPS)
        """Seconds that a token of a prompt took, how many there were, and how far into their
        prompt, of steps with some, the last one first."""
        self._mixed_steps = 0
        """Steps with both since the last one without prompts."""
        self._beside: deque[int] = deque(maxlen=REMEMBERED_STEPS)
        """Prompt tokens that went beside decodes."""
        self._longer: deque[float] = deque(maxlen=REMEMBERED_STEPS)
        """How much longer steps with both took than was foretold."""

    def note(self, prompt_tokens: int, decodes: int, place: int = 0, *, seconds: float) -> None:
        """Take in how long a step took.

        Args:
            prompt_tokens: Of all prompts in it.
            decodes: Sequences that got one token each.
            place: How far into its prompt the first chunk began.
            seconds: What it took.
        """
        if not prompt_tokens:
            self._decoding.appendleft((decodes, seconds))
            self._mixed_steps = 0
            return
        if decodes:
            self._mixed_steps += 1
            self._beside.append(prompt_tokens)
        alone = (self._alone_seconds(decodes) or 0.0) if decodes else 0.0
        if decodes and self._prompts:
            foretold = alone + prompt_tokens * self._token_seconds(place)
            self._longer.append(seconds / foretold if foretold > 0.0 else 1.0)
        self._prompts.appendleft(((seconds - alone) / prompt_tokens, prompt_tokens, place))

    @property
    def withholds(self) -> bool:
        """Whether the next step goes without prompts, to show what decodes take alone."""
        return self._mixed_steps >= KNOWN_FOR_STEPS

    def tokens_of_prompts(
        self, decodes: int, prompts: list[Sequence], next_ones: list[Sequence], cache: BlockCache
    ) -> int:
        """Prompt tokens that fit beside decodes, as `tokens` says.

        Args:
            decodes: In the step, at least one.
            prompts: Those under way.
            next_ones: Those for which there are seats.
            cache: Knows what of their prompts was computed before.
        """
        place = 0
        if prompts:
            place = prompts[0].num_computed
        elif next_ones:
            place = len(cache.known(next_ones[0])) * cache.block_size
        return self.tokens(decodes, tokens_of([*prompts, *next_ones][1:]), place=place)

    def tokens(self, decodes: int, behind: int, *, place: int = 0) -> int:
        """Prompt tokens that fit beside decodes; 0: this step shows what decodes take alone.

        Args:
            decodes: In the step, at least one.
            behind: The tokens of the prompts that could be computed beside the first one, as of
                `tokens_of`.
            place: How far into its prompt the first chunk begins.
        """
        if self.withholds:
            return 0
        least = LEAST_TOKENS
        if self._target_seconds is None:
            least = max(LEAST_UNASKED, -(-behind // MOST_STEPS))
        # What was measured badly does not stall everybody.
        fitting = min(self._fitting(decodes, place), 2 * max(FIRST_TOKENS, *self._beside, 0))
        return min(max(fitting, least), self._most_tokens)

    def _fitting(self, decodes: int, place: int) -> int:
        alone = self._alone_seconds(decodes)
        if not self._prompts or (alone is None and self._target_seconds is None):
            return FIRST_TOKENS
        alone = alone or 0.0
        target = LONGER * alone if self._target_seconds is None else self._target_seconds
        target /= self._margin()
        a_token = self._token_seconds(place)
        return self._most_tokens if a_token <= 0.0 else int(max(target - alone, 0.0) / a_token)

    def _alone_seconds(self, decodes: int) -> float | None:
        """What a step with so many decodes takes without prompts; None: none was seen."""
        if not self._decoding:
            return None
        nearest = sorted(self._decoding, key=lambda one: abs(one[0] - decodes))
        return median([seconds for _, seconds in nearest[:NEAREST_STEPS]])

    def _margin(self) -> float:
        """How much longer than foretold nine in ten steps took at most."""
        if len(self._longer) < NEAREST_STEPS:
            return 1.0
        found = sorted(self._longer)[int(WITHIN * len(self._longer))]
        return min(max(found, 1.0), MOST_MARGIN)

    def _token_seconds(self, place: int) -> float:
        """What the middle token took: each step counts by its tokens, for small ones are noisy."""
        nearest = sorted(self._prompts, key=lambda one: abs(one[2] - place))[:NEAREST_STEPS]
        left = sum([count for _, count, _ in nearest]) / 2
        for seconds, count, _ in sorted(nearest):
            left -= count
            if left <= 0:
                return seconds
        raise AssertionError("half of them are fewer than all")
