"""Beam search over forks: beams share the blocks of what they have in common.

The rule is that of transformers' `generate(num_beams=B)` with `early_stopping=False`, its default:

    candidates      the max(2, 1 + E) · B best of score + log p(token), with E end tokens
    a candidate that ends is a completion if it is among the best B; its score is Σ log p / length^P
    the best B candidates that do not end go on
    the search ends when B completions are kept and the best beam's Σ log p / length^P is not above
    the worst of them, or at `max_tokens`, where all candidates end

Length counts generated tokens, the end token among them; P is `length_penalty`. log p is taken from
the raw logits in float32.

Beams of a search are at the same length, but the scheduler may throw some out. Then the others are
parked (their candidates kept, their blocks given back) until those have caught up.

    tokens = search.score(rows)               # before Scheduler.complete, which is given them
    search.settle(scheduler, now)             # after it
    if search.done: search.deltas()
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from ridgeline.batching.scheduler import Scheduler
from ridgeline.batching.sequence import FinishReason, Request, Sequence, Status
from ridgeline.serve.messages import Delta, Submit
from ridgeline.serve.sampling.text import Tokenizer, decoded


@dataclass(slots=True, eq=False)
class Beam:
    """One line of the search."""

    sequence: Sequence
    tokens: tuple[int, ...] = ()
    """The tokens generated so far."""
    score: float = 0.0
    """The sum of the tokens' log p."""
    candidates: tuple[list[float], list[int]] | None = None
    """log p and tokens that may come next, best first; None: not computed yet."""


@dataclass(frozen=True, slots=True)
class FinishedBeam:
    """A completion that a search has finished."""

    tokens: tuple[int, ...]
    score: float
    """The sum of the tokens' log p."""
    ranked: float
    """Σ log p / length^P"""
    finish_reason: Literal["stop", "length"]


@dataclass(frozen=True, slots=True)
class _Child:
    parent: Beam
    token: int
    score: float


class BeamSearch:
    """The beam search of one request.

    Args:
        submit: Validated, with `beams` of at least 2.
        sequence: Of its prompt, as given to `Scheduler.add`.
        eos_ids: Tokens that end a completion.
        tokenizer: None: completions have no text.
        request_of: The scheduler's request for the beam of this number (0 is the first).
    """

    def __init__(
        self,
        submit: Submit,
        sequence: Sequence,
        *,
        eos_ids: tuple[int, ...],
        tokenizer: Tokenizer | None,
        request_of: Callable[[int], Request],
    ) -> None:
        self.submit = submit
        self.beams = [Beam(sequence)]
        self._tokenizer = tokenizer
        self._eos = frozenset(eos_ids)
        self._width = submit.sampling.beams
        self._num_candidates = max(2, 1 + len(self._eos)) * self._width
        self._request_of = request_of
        self._num_requests = 1
        self._found: list[FinishedBeam] = []
        self._children: list[_Child] | None = None
        """What was chosen, until `settle` carries it out."""
        self._first_children: dict[Beam, _Child] = {}
        """Children that go on with the sequences of their parents, by parent."""
        self.done = False

    @property
    def sequences(self) -> list[Sequence]:
        """The sequences that the scheduler has of this search."""
        return [beam.sequence for beam in self.beams if beam.candidates is None]

    def score(self, rows: dict[Sequence, Tensor]) -> dict[Sequence, int]:
        """Take in raw logits [V] of beams that were computed in this step.

        Returns:
            The token that `Scheduler.complete` is to be given for each.
        """
        scored = [beam for beam in self.beams if beam.sequence in rows]
        if not scored:
            return {}
        logits = torch.stack([rows[beam.sequence] for beam in scored]).float()
        count = min(self._num_candidates, logits.shape[1])
        values, tokens = logits.log_softmax(-1).topk(count, dim=-1)
        for beam, mine, ids in zip(scored, values.tolist(), tokens.tolist(), strict=True):
            beam.candidates = (mine, ids)
        if all(beam.candidates is not None for beam in self.beams):
            self._choose(set(scored))
        given = {}
        for beam in scored:
            assert beam.candidates is not None
            child = self._first_children.get(beam)
            given[beam.sequence] = child.token if child else beam.candidates[1][0]
        return given

    def settle(self, scheduler: Scheduler, now: float) -> None:
        """Fork, end and park sequences as was decided."""
        if self._children is None:
            for beam in self.beams:
                if beam.candidates is not None:
                    scheduler.finish(beam.sequence, FinishReason.ABORT, now)
            return
        going_on = {child.parent for child in self._first_children.values()}
        new = []
        for child in self._children:
            parent = child.parent
            sequence = parent.sequence
            if self._first_children.get(parent) is not child:
                request = self._request_of(self._num_requests)
                self._num_requests += 1
                sequence = scheduler.fork(sequence, request, now, last_token=child.token)
            new.append(Beam(sequence, (*parent.tokens, child.token), child.score))
        for beam in self.beams:
            if beam not in going_on:
                scheduler.finish(beam.sequence, FinishReason.ABORT, now)
        self.beams, self._children, self._first_children = new, None, {}

    def deltas(self) -> list[Delta]:
        """The best `n` completions, best first, each in one Delta."""
        assert self.done
        return [
            Delta(
                id=self.submit.id,
                index=index,
                tokens=found.tokens,
                text=self._text(found),
                finish_reason=found.finish_reason,
                cumulative_logprob=found.score,
            )
            for index, found in enumerate(self._found[: self.submit.n])
        ]

    @property
    def found(self) -> list[FinishedBeam]:
        """Completions kept so far, best first."""
        return list(self._found)

    def _choose(self, scored: set[Beam]) -> None:
        """Completions and the beams that go on, from the candidates of all beams."""
        best = self._merged()
        length = len(self.beams[0].tokens) + 1
        last = length >= self.submit.sampling.max_tokens
        for child in best[: self._width]:
            ends = child.token in self._eos
            if ends or last:
                tokens = (*child.parent.tokens, child.token)
                reason: Literal["stop", "length"] = "stop" if ends else "length"
                self._keep(
                    FinishedBeam(tokens, child.score, self._ranked(child.score, length), reason)
                )
        running = [] if last else [one for one in best if one.token not in self._eos][: self._width]
        full = len(self._found) == self._width
        if not running or (
            full and self._ranked(running[0].score, length) <= self._found[-1].ranked
        ):
            self.done = True
            running = []
        self._children = running
        for child in running:
            # A parked parent's sequence has ended: all its children are forks.
            if child.parent in scored and child.parent.sequence.status is Status.RUNNING:
                self._first_children.setdefault(child.parent, child)

    def _merged(self) -> list[_Child]:
        """The best candidates of all beams, best first; sums in float32, as tensors would have."""
        children: list[_Child] = []
        sums: list[float] = []
        for beam in self.beams:
            assert beam.candidates is not None
            values, tokens = beam.candidates
            scores = (torch.tensor(values) + torch.tensor(beam.score)).tolist()
            sums.extend(scores)
            children.extend(
                _Child(beam, token, score) for token, score in zip(tokens, scores, strict=True)
            )
        order = sorted(range(len(sums)), key=lambda at: -sums[at])
        return [children[at] for at in order[: self._num_candidates]]

    def _ranked(self, score: float, length: int) -> float:
        return score / length**self.submit.sampling.length_penalty

    def _keep(self, found: FinishedBeam) -> None:
        self._found.append(found)
        self._found.sort(key=lambda one: -one.ranked)
        del self._found[self._width :]

    def _text(self, found: FinishedBeam) -> str:
        if self._tokenizer is None:
            return ""
        ended = found.finish_reason == "stop"
        return decoded(self._tokenizer, list(found.tokens[:-1] if ended else found.tokens))
