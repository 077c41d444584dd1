"""Heads that guess further tokens from the model's own last hidden state.

    head i:   h_i = block(… block(h)),   block(x) = x + D SiLU(U x + u) + d,   D, d begin at 0
    q_i     = softmax(output embedding · h_i)      guesses token t + 1 + i from the state of token t

Cai et al., "Medusa", 2401.10774, section 2.1, with one difference: their heads have a narrow block
and each an output embedding of its own, which for 128k tokens is most of a small model; ours share
the model's and have a wider block. One chain of guesses is checked here, a tree in `head_tree.py`.
Trained by `train_heads.py` (`ridgeline draft-heads`).
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import torch
from torch import Tensor, nn

from ridgeline.batching.sequence import Sequence
from ridgeline.errors import InputError
from ridgeline.serve.messages import MemoryRow
from ridgeline.serve.sampling.state import SamplingState
from ridgeline.serve.speculation.drafter import Proposal, draw_drafts
from ridgeline.serve.speculation.head_files import read_head, write_head

WEIGHTS = "heads.safetensors"
FACTS = "heads.json"


class HeadFacts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What `heads.json` says of draft heads."""

    model: str
    """The model that they were trained for."""
    hidden: int
    vocab: int
    num_heads: int
    num_blocks: int = 1
    """The number of blocks per head."""
    widening: int = 4
    """Width inside a block over the model's."""
    steps: int = 0
    """The steps of the training."""
    held_out_accuracy: tuple[float, ...] = ()
    """The accuracy of each head's first guess, on text that was not trained on."""
    held_out_ranks: tuple[tuple[float, ...], ...] = ()
    """By head, how often its first, second, … guess is what the model says, on the same text."""


class HeadBlock(nn.Module):
    """x + D SiLU(U x + u) + d, at first the identity."""

    def __init__(self, hidden: int, widening: int) -> None:
        super().__init__()
        self.up = nn.Linear(hidden, widening * hidden)
        self.down = nn.Linear(widening * hidden, hidden)
        nn.init.zeros_(self.down.weight)
        nn.init.zeros_(self.down.bias)

    def forward(self, states: Tensor) -> Tensor:
        """[…, hidden] to the same."""
        return states + self.down(nn.functional.silu(self.up(states)))


class DraftHeads(nn.Module):
    """All heads of one model."""

    def __init__(self, facts: HeadFacts) -> None:
        super().__init__()
        self.facts = facts
        self.heads = nn.ModuleList(
            nn.Sequential(
                *(HeadBlock(facts.hidden, facts.widening) for _ in range(facts.num_blocks))
            )
            for _ in range(facts.num_heads)
        )

    def forward(self, states: Tensor) -> Tensor:
        """[…, hidden] to [heads, …, hidden]."""
        return torch.stack([head(states) for head in self.heads])

    def save(self, folder: Path) -> None:
        """Write weights and facts."""
        write_head(self, folder, WEIGHTS, FACTS)


def read_heads(path: str | Path) -> DraftHeads:
    """Heads that `save` wrote.

    Raises:
        InputError: The folder does not have them.
    """
    folder, otherwise = Path(path), "draft heads ({}); train them with: ridgeline draft-heads"
    return read_head(DraftHeads, HeadFacts, folder / WEIGHTS, folder / FACTS, otherwise)


class HeadDrafter:
    """Guesses one token per head.

    Args:
        heads: As read.
        output_embedding: Of the target, swapped or not: [N, hidden] to [N, V].
        hidden: Width of the target.
        vocab: Of the target.
        num_drafts: At most so many heads are asked.

    Raises:
        InputError: The heads belong to another model.
    """

    needs_hidden = True

    def __init__(
        self,
        heads: DraftHeads,
        output_embedding: nn.Module,
        *,
        hidden: int,
        vocab: int,
        num_drafts: int,
    ) -> None:
        facts = heads.facts
        if (facts.hidden, facts.vocab) != (hidden, vocab):
            raise InputError(
                f"the draft heads were trained for {facts.model} (width {facts.hidden}, "
                f"{facts.vocab} tokens), not for this model (width {hidden}, {vocab} tokens)"
            )
        if num_drafts > facts.num_heads:
            raise InputError(
                f"{num_drafts} drafts were asked for, and there are {facts.num_heads} draft heads"
            )
        self._heads = heads.requires_grad_(requires_grad=False).eval()
        self._output = output_embedding
        self._num_drafts = num_drafts

    @torch.inference_mode()
    def propose(
        self, sequences: list[Sequence], states: list[SamplingState], hidden: Tensor | None
    ) -> list[Proposal]:
        """Guesses with their distributions."""
        assert hidden is not None
        assert len(hidden) == len(sequences)
        if not sequences:
            return []
        ahead = self._heads(hidden)[: self._num_drafts]
        logits = self._output(ahead.flatten(0, 1)).float().unflatten(0, ahead.shape[:2])
        guesses: list[tuple[int, ...]] = [() for _ in sequences]
        given: list[list[Tensor]] = [[] for _ in sequences]
        for mine in logits:
            tokens, drawn_from = draw_drafts(mine, states, guesses)
            for place, (token, one) in enumerate(zip(tokens, drawn_from, strict=True)):
                guesses[place] += (token,)
                if one is not None:
                    given[place].append(one)
        return [
            Proposal(tokens, torch.stack(rows) if rows else None)
            for tokens, rows in zip(guesses, given, strict=True)
        ]

    def forget(self, sequence: Sequence) -> None:
        """Forget a sequence, of which nothing is kept."""

    def memory(self) -> list[MemoryRow]:
        """Weights of the heads."""
        count = sum(one.numel() * one.element_size() for one in self._heads.parameters())
        return [MemoryRow(what="draft heads", bytes=count)]
