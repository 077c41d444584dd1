"""What all who guess ahead have in common."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from ridgeline.batching.sequence import Sequence
from ridgeline.serve.messages import MemoryRow
from ridgeline.serve.sampling.state import SamplingState


@dataclass(frozen=True, slots=True)
class Proposal:
    """Guesses of a sequence's next tokens, perhaps none."""

    tokens: tuple[int, ...] = ()
    probabilities: Tensor | None = None
    """[len(tokens), V] that each was drawn from; None: they are certain."""


class Drafter(Protocol):
    """Guesses for sequences that are about to decode one token each."""

    def propose(
        self, sequences: list[Sequence], states: list[SamplingState], hidden: Tensor | None
    ) -> list[Proposal]:
        """Guess the tokens after each sequence's last one.

        Args:
            sequences: Whose `tokens` are all settled; of them only the last is not computed.
            states: Of the same answers: their parameters and random numbers.
            hidden: [S, hidden]: the state from which each sequence's last token was picked; None:
                not kept (only `needs_hidden` drafters ask for it).
        """

    @property
    def needs_hidden(self) -> bool:
        """Whether `propose` must be given hidden states."""

    def forget(self, sequence: Sequence) -> None:
        """The sequence ended; of an unknown one, nothing."""

    def memory(self) -> list[MemoryRow]:
        """For the ledger."""
