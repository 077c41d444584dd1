"""What one answer carries from step to step besides its tokens' KV."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from ridgeline.serve.messages import Submit
from ridgeline.serve.sampling.draw import Purpose, key_of, uniform
from ridgeline.serve.sampling.history import History
from ridgeline.serve.sampling.text import TextStream, Tokenizer

if TYPE_CHECKING:
    from ridgeline.serve.sampling.grammar import Matcher


class SamplingState:
    """Of one answer. `append` is called once per token of the answer, by `delta.take`."""

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
        """Raises `RequestError` when the grammar cannot be compiled.

        Args:
            submit: Validated.
            index: Which of the request's answers.
            vocab: Columns of the logits.
            eos_ids: Tokens that end an answer; out-of-range ones are left out.
            tokenizer: None: the answer has no text.
            engine_seed: With the request's id it stands in for a seed that is not given.
        """
        self.submit = submit
        self.sampling = submit.sampling
        self.index = index
        self.tokenizer = tokenizer
        self.eos_ids = tuple(token for token in eos_ids if token < vocab)
        self.num_tokens = 0
        """Of the answer so far."""
        self.text = TextStream(
            tokenizer,
            self.sampling.stop,
            keep_stop=self.sampling.keep_stop,
            min_tokens=self.sampling.min_tokens,
        )
        self.history = History(submit.prompt) if self.penalised else None
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
        edited = self.penalised or sampling.logit_bias or sampling.min_tokens or sampling.grammar
        return self.greedy and not edited and sampling.logprobs is None

    @cached_property
    def ending_ids(self) -> frozenset[int]:
        """Tokens that end the answer."""
        eos = () if self.sampling.ignore_eos else self.eos_ids
        return frozenset(self.sampling.stop_ids).union(eos)

    def uniform(self, ahead: int, purpose: Purpose) -> float:
        """The number for the token `ahead` positions after the next one."""
        return uniform(self._key, self.num_tokens + ahead, purpose)

    def append(self, token: int) -> None:
        """The answer goes on with this token."""
        self.num_tokens += 1
        if self.history is not None:
            self.history.add(token)
        if self.matcher is not None:
            self.matcher.accept(token)
