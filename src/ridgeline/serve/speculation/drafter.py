"""What all who guess tokens ahead have in common: their interface, and how they draw guesses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from ridgeline.batching.sequence import Sequence
from ridgeline.serve.messages import MemoryRow
from ridgeline.serve.sampling.distribution import LogitRow, draw, edit, probabilities
from ridgeline.serve.sampling.state import Purpose, SamplingState


@dataclass(frozen=True, slots=True)
class Proposal:
    """Guesses of a sequence's next tokens, perhaps none."""

    tokens: tuple[int, ...] = ()
    probabilities: Tensor | None = None
    """[len(tokens), V] that each was drawn from; None: they are certain."""
    parents: tuple[int, ...] = ()
    """Where they are certain: which guess each one follows (`batching/draft_tree.py`); none: they
    are a chain."""


class Drafter(Protocol):
    """Guesses for sequences that are about to decode one token each."""

    def propose(
        self, sequences: list[Sequence], states: list[SamplingState], hidden: Tensor | None
    ) -> list[Proposal]:
        """Guess the tokens after each sequence's last one.

        Args:
            sequences: Whose `tokens` are all settled; of them only the last is not computed.
            states: Of the same completions: their parameters and random numbers.
            hidden: [S, hidden]: the state from which each sequence's last token was picked; None:
                not kept (only `needs_hidden` drafters ask for it).
        """

    @property
    def needs_hidden(self) -> bool:
        """Whether `propose` must be given hidden states."""

    def forget(self, sequence: Sequence) -> None:
        """The sequence ended; of an unknown one, nothing."""

    def memory(self) -> list[MemoryRow]:
        """Rows for the memory ledger."""


def draw_drafts(
    logits: Tensor, states: list[SamplingState], before: list[tuple[int, ...]]
) -> tuple[list[int], list[Tensor | None]]:
    """One draft per row, and what it was drawn from (None: greedy, so it is certain).

    Grammar, penalties, temperature and the rest apply to drafts as to tokens: q is then close to p,
    and a draft that the target would never take is not made.

    Args:
        logits: [R, V] float32; overwritten.
        states: Of each row.
        before: The drafts before each row's, taken as accepted.
    """
    rows = [LogitRow(state, drafts) for state, drafts in zip(states, before, strict=True)]
    edit(logits, rows)
    greedy = logits.argmax(-1)
    random = [at for at, state in enumerate(states) if not state.greedy]
    drawn_from: list[Tensor | None] = [None] * len(states)
    if random:
        mine = probabilities(logits[random], [states[at].sampling for at in random])
        numbers = [states[at].uniform(len(before[at]), Purpose.DRAFT) for at in random]
        greedy[random] = draw(mine, torch.tensor(numbers, dtype=torch.float64))
        for place, at in enumerate(random):
            drawn_from[at] = mine[place]
    return greedy.tolist(), drawn_from
