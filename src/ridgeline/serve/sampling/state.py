"""What one completion carries from step to step, and how picked tokens become a part of it.

Random numbers belong to a request: the number of the token at position n is a hash of (key, n,
purpose). It depends neither on the batch nor on what was drawn before, so a preempted completion
goes on as if it had not been.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from struct import Struct
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from ridgeline.errors import RidgelineError
from ridgeline.serve.messages import Delta, Submit, ThoughtBudget, TokenLogprobs
from ridgeline.serve.sampling.text import TextStream, Tokenizer

if TYPE_CHECKING:
    from torch import Tensor

    from ridgeline.serve.sampling.grammar import Matcher

COUNTER = Struct("<16sqq")
SPARE = 64


class NotFinite(RidgelineError):
    """Some row has NaN or infinities instead of numbers; whose it is shows when each is alone."""


def check_finite(best: Tensor) -> None:
    """Raise `NotFinite` unless every row's largest logit, or any of its weights, is a number.

    The largest value tells: it is NaN where any is, infinite where one is, and minus infinity where
    no token may come.
    """
    if not bool(best.isfinite().all()):
        raise NotFinite("the model gave no finite numbers (NaN, infinity, or no token is left)")


class Purpose(IntEnum):
    """What a number is for; numbers of different purposes are independent."""

    TOKEN = 0
    ACCEPT = 1
    DRAFT = 2


def key_of(seed: int | None, index: int, fallback: str) -> bytes:
    """16 bytes that name a completion's stream of numbers.

    Completion i of a request with seed s is completion 0 of one with seed s + i. Without a seed the
    stream is that of `fallback` (the engine's seed and the request's id).
    """
    name = f"{fallback}/{index}" if seed is None else str(seed + index)
    return hashlib.blake2b(name.encode(), digest_size=16).digest()


def uniform(key: bytes, position: int, purpose: Purpose) -> float:
    """A number in [0, 1), made of 53 bits of blake2b.

    >>> key = key_of(7, 0, "")
    >>> uniform(key, 0, Purpose.TOKEN) == uniform(key, 0, Purpose.TOKEN)
    True
    """
    packed = COUNTER.pack(key, position, purpose)
    digest = hashlib.blake2b(packed, digest_size=8).digest()
    return (int.from_bytes(digest, "little") >> 11) * 2.0**-53


class TokenHistory:
    """Distinct tokens of prompt and completion with their counts in the completion.

    A prompt's tokens have count 0: the repetition penalty takes them in, the two others do not.
    """

    def __init__(self, prompt: tuple[int, ...]) -> None:
        distinct = sorted(set(prompt))
        self._slots = {token: slot for slot, token in enumerate(distinct)}
        self._tokens = np.zeros(len(distinct) + SPARE, np.int64)
        self._tokens[: len(distinct)] = distinct
        self._counts = np.zeros(len(distinct) + SPARE, np.float32)
        self._size = len(distinct)

    def add(self, token: int) -> None:
        """The completion has one more of this token."""
        slot = self._slots.get(token)
        if slot is None:
            slot = self._size
            if slot == len(self._tokens):
                self._tokens = np.concatenate((self._tokens, np.zeros_like(self._tokens)))
                self._counts = np.concatenate((self._counts, np.zeros_like(self._counts)))
            self._tokens[slot] = token
            self._counts[slot] = 0
            self._slots[token] = slot
            self._size += 1
        self._counts[slot] += 1

    def with_drafts(self, drafts: tuple[int, ...]) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Tokens and counts, [D] each, as if the drafts had been accepted."""
        tokens, counts = self._tokens[: self._size], self._counts[: self._size]
        if not drafts:
            return tokens, counts
        counts = counts.copy()
        new: dict[int, int] = {}
        for draft in drafts:
            slot = self._slots.get(draft)
            if slot is None:
                new[draft] = new.get(draft, 0) + 1
            else:
                counts[slot] += 1
        added = np.fromiter(new.keys(), np.int64, len(new))
        times = np.fromiter(new.values(), np.float32, len(new))
        return np.concatenate((tokens, added)), np.concatenate((counts, times))


@dataclass(frozen=True, slots=True)
class Picked:
    """What comes next in a completion."""

    tokens: tuple[int, ...]
    """Accepted drafts and one more token, unless a draft that ends the completion was accepted."""
    logprobs: tuple[TokenLogprobs, ...] = ()
    """Log-probabilities, one per token, where the request asks for them."""
    num_accepted: int = 0
    """Drafts among the tokens."""
    path: tuple[int, ...] = ()
    """The drafts among the tokens, by number, where drafts are a tree; a chain needs none."""

    @property
    def rows(self) -> tuple[int, ...]:
        """The rows of the completion that its tokens were picked from, 0: before all drafts."""
        if self.path:
            return (0, *(draft + 1 for draft in self.path))
        return tuple(range(self.num_accepted + 1))


class SamplingState:
    """The state of one completion; `append` is called once per token of it, by `take`."""

    def __init__(
        self,
        submit: Submit,
        index: int,
        *,
        vocab: int,
        eos_ids: tuple[int, ...],
        tokenizer: Tokenizer | None,
        engine_seed: int = 0,
    ) -> None:
        """Begin a completion of a request; `RequestError` where its grammar cannot be compiled.

        Args:
            submit: Validated.
            index: Which of the request's completions.
            vocab: Columns of the logits.
            eos_ids: Tokens that end a completion; out-of-range ones are left out.
            tokenizer: None: the completion has no text.
            engine_seed: With the request's id it stands in for a seed that is not given.
        """
        self.submit = submit
        self.sampling = submit.sampling
        self.index = index
        self.tokenizer = tokenizer
        self.eos_ids = tuple(token for token in eos_ids if token < vocab)
        self.num_tokens = 0
        """Tokens of the completion so far."""
        self.has_line = False
        """Whether a line of the completion is complete."""
        self.text = TextStream(
            tokenizer,
            self.sampling.stop,
            keep_stop=self.sampling.keep_stop,
            min_tokens=self.sampling.min_tokens,
            keep_special=self.sampling.keep_special,
        )
        self._longest = max((len(one) for one in self.sampling.forbidden), default=0)
        self._recent: list[int] = []
        """The last tokens, as many as a forbidden sequence may have."""
        self.history = TokenHistory(submit.prompt) if self.penalised else None
        budget = self.sampling.thoughts
        self.thoughts = None if budget is None else ThoughtCount(budget)
        self.matcher: Matcher | None = None
        if self.sampling.grammar is not None:
            from ridgeline.serve.sampling.grammar import grammars_of

            grammars = grammars_of(tokenizer, vocab, self.eos_ids)
            self.matcher = grammars.matcher(self.sampling.grammar)
        self._key = key_of(self.sampling.seed, index, f"{engine_seed}/{submit.id}")

    @property
    def greedy(self) -> bool:
        """Whether the most likely token is taken."""
        return self.sampling.temperature == 0.0

    @cached_property
    def penalised(self) -> bool:
        """Whether tokens that were there before count less."""
        sampling = self.sampling
        return (
            sampling.repetition_penalty != 1.0
            or sampling.presence_penalty != 0.0
            or sampling.frequency_penalty != 0.0
        )

    @cached_property
    def plain(self) -> bool:
        """Whether a token is the argmax of the raw logits and nothing else is asked."""
        sampling = self.sampling
        if self.penalised or sampling.allowed_ids or sampling.forbidden or sampling.thoughts:
            return False
        edited = sampling.logit_bias or sampling.min_tokens or sampling.grammar
        return self.greedy and not edited and sampling.logprobs is None

    @cached_property
    def ending_ids(self) -> frozenset[int]:
        """Tokens that end the completion."""
        eos = () if self.sampling.ignore_eos else self.eos_ids
        return frozenset(self.sampling.stop_ids).union(eos)

    def uniform(self, ahead: int, purpose: Purpose) -> float:
        """The number for the token `ahead` positions after the next one."""
        return uniform(self._key, self.num_tokens + ahead, purpose)

    def last(self, count: int, drafts: tuple[int, ...]) -> tuple[int, ...]:
        """The last tokens of the completion with these drafts; fewer where it is shorter."""
        return (*self._recent, *drafts)[-count:] if count else ()

    def append(self, token: int) -> None:
        """The completion goes on with this token."""
        self.num_tokens += 1
        if self._longest > 1:
            self._recent = [*self._recent, token][1 - self._longest :]
        if self.history is not None:
            self.history.add(token)
        if self.thoughts is not None:
            self.thoughts.add(token)
        if self.matcher is not None:
            self.matcher.accept(token)


def take(
    state: SamplingState,
    picked: Picked,
    *,
    prompt_logprobs: tuple[TokenLogprobs, ...] = (),
) -> Delta:
    """Append the picked tokens to the completion, up to the one that ends it.

    Tokens after that one are dropped: `Delta.tokens` is what the completion really got, and what
    `Scheduler.complete` must be given. The token that ends a completion is one of its tokens; its
    text is none of the completion's, unless `keep_stop` asks for it. The text of the tokens before
    a stop string that lies in the middle of a token is cut there, and the token counts.
    """
    kept: list[int] = []
    finish: Literal["stop", "length"] | None = None
    reason: str | int | None = None
    for token in picked.tokens:
        kept.append(token)
        state.append(token)
        finish, reason = _end(state, token)
        if finish is not None:
            state.text.flush()
            break
    if state.text.stopped_by is not None:
        finish, reason = "stop", state.text.stopped_by
    text = state.text.take()
    state.has_line = state.has_line or "\n" in text
    return Delta(
        id=state.submit.id,
        index=state.index,
        tokens=tuple(kept),
        text=text,
        logprobs=picked.logprobs[: len(kept)],
        prompt_logprobs=prompt_logprobs,
        finish_reason=finish,
        stop_reason=reason,
    )


def _end(
    state: SamplingState, token: int
) -> tuple[Literal["stop", "length"] | None, str | int | None]:
    """Whether the completion ends with this token, and the stop string or stop id that ended it."""
    sampling, text = state.sampling, state.text
    ends = token in state.ending_ids
    if not ends or sampling.keep_stop:
        text.push(token)
    if text.stopped_by is not None:
        return "stop", None
    if ends:
        return "stop", token if token in sampling.stop_ids else None
    if state.num_tokens >= sampling.max_tokens:
        return "length", None
    return None, None


class ThoughtCount:
    """The tokens of thought that a completion has so far; when they are spent, the mark comes next.

    Marks are single tokens (`<think>`, `</think>`); the tokens between them count.

    >>> count = ThoughtCount(ThoughtBudget(most=2, open=8, close=9, inside=False))
    >>> count.is_spent((8, 1)), count.is_spent((8, 1, 1)), count.is_spent((8, 1, 1, 9))
    (False, True, False)
    """

    def __init__(self, budget: ThoughtBudget) -> None:
        self.budget = budget
        self._inside = budget.inside
        self._num = 0

    def add(self, token: int) -> None:
        """The completion goes on with this token."""
        self._inside, self._num = self._after((token,))

    def is_spent(self, drafts: tuple[int, ...]) -> bool:
        """Whether the closing mark must follow the completion with these drafts."""
        inside, num = self._after(drafts)
        return inside and num >= self.budget.most

    def _after(self, tokens: Iterable[int]) -> tuple[bool, int]:
        inside, num = self._inside, self._num
        for token in tokens:
            if token == self.budget.close:
                inside = False
            elif inside:
                num += 1
            else:
                inside = token == self.budget.open
        return inside, num
