"""An EAGLE head guesses a chain: each guess from the state that it guessed before.

Heads of the first EAGLE are shown what the model's head reads, EAGLE-3 heads the inputs of three of
its layers; guessing goes on from their own states alike.

Keys and values of the head come from the model's true states and settled tokens alone, in a window
of the last `WINDOW` positions of each sequence. Guesses are attended to in a copy of it that lives
for one round, so a refused guess leaves nothing behind, and those that held are computed again from
the states that the model has given meanwhile. A prompt's beginning that was found in the prefix
cache gave no states: the window begins after it.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ridgeline.batching.sequence import Sequence
from ridgeline.errors import InputError
from ridgeline.serve.messages import MemoryRow
from ridgeline.serve.sampling.state import SamplingState
from ridgeline.serve.speculation.drafter import Proposal, draw_drafts
from ridgeline.serve.speculation.eagle import EagleHead

WINDOW = 256
"""Positions of a sequence that the head can look back on."""


class EagleDrafter:
    """Guesses `num_drafts` tokens for every sequence whose last state it was shown.

    Args:
        head: As read.
        embedding: Of the target: [N] tokens to [N, hidden].
        output_embedding: Of the target, swapped or not: [N, hidden] to [N, V].
        hidden: Width of the target.
        vocab: Of the target.
        num_drafts: Guesses per sequence.
        max_sequences: At once.

    Raises:
        InputError: The head belongs to another model.
    """

    needs_hidden = False

    def __init__(
        self,
        head: EagleHead,
        embedding: nn.Module,
        output_embedding: nn.Module,
        *,
        hidden: int,
        vocab: int,
        num_drafts: int,
        max_sequences: int,
    ) -> None:
        facts = head.facts
        if (facts.hidden, facts.vocab) != (hidden, vocab):
            raise InputError(
                f"the EAGLE head was trained for {facts.model} (width {facts.hidden}, "
                f"{facts.vocab} tokens), not for this model (width {hidden}, {vocab} tokens)"
            )
        self._head = head.requires_grad_(requires_grad=False).eval()
        self._embedding = embedding
        self._output = output_embedding
        self._num_drafts = num_drafts
        like = head.fc.weight
        self._window = like.new_zeros(2, max_sequences, WINDOW, facts.kv_heads, facts.head_dim)
        """Keys and values; position p of a sequence stands at p modulo `WINDOW`."""
        self._filled = torch.zeros(max_sequences, WINDOW, dtype=torch.bool, device=like.device)
        self._free = list(range(max_sequences))
        self._slots: dict[Sequence, int] = {}
        """The place of each sequence in the window; whoever guessed longest ago comes first."""
        self._shown: dict[Sequence, list[tuple[int, Tensor]]] = {}
        """States that have no keys yet, with the position of the first."""

    def show(self, sequence: Sequence, start: int, states: Tensor) -> None:
        """Take in the model's states [T, hidden] of tokens from `start` on.

        States of guesses may be among them: what comes later holds, and of the rest only those of
        settled tokens are used.
        """
        kept = [
            (first, rows[: start - first])
            for first, rows in self._shown.get(sequence, ())
            if max(first, start - WINDOW) < min(start, first + len(rows))
        ]
        self._shown[sequence] = [*kept, (start, states.clone())]

    @torch.inference_mode()
    def propose(
        self,
        sequences: list[Sequence],
        states: list[SamplingState],
        hidden: Tensor | None,  # noqa: ARG002 (the drafters' common signature)
    ) -> list[Proposal]:
        """Guesses with their distributions; none for whom the last state is not known."""
        proposals = [Proposal()] * len(sequences)
        known = [place for place, one in enumerate(sequences) if self._is_known(one)]
        if known:
            mine = [sequences[place] for place in known]
            found = self._guess(mine, [states[place] for place in known])
            for place, proposal in zip(known, found, strict=True):
                proposals[place] = proposal
        return proposals

    def forget(self, sequence: Sequence) -> None:
        """Free a sequence's part of the window."""
        self._shown.pop(sequence, None)
        slot = self._slots.pop(sequence, None)
        if slot is not None:
            self._filled[slot] = False
            self._free.append(slot)

    def memory(self) -> list[MemoryRow]:
        """Bytes of weights and window."""
        count = sum(one.numel() * one.element_size() for one in self._head.parameters())
        window = self._window.numel() * self._window.element_size()
        return [
            MemoryRow(what="eagle head", bytes=count),
            MemoryRow(
                what="eagle keys and values", bytes=window, note=f"{WINDOW} tokens a sequence"
            ),
        ]

    def _is_known(self, sequence: Sequence) -> bool:
        last = len(sequence.tokens) - 2
        return any(
            first <= last < first + len(rows) for first, rows in self._shown.get(sequence, ())
        )

    def _guess(self, sequences: list[Sequence], states: list[SamplingState]) -> list[Proposal]:
        head, device = self._head, self._window.device
        slots = torch.tensor([self._slot(one, sequences) for one in sequences], device=device)
        fused = self._catch_up(sequences, slots)
        positions = torch.tensor([len(one.tokens) - 2 for one in sequences], device=device)
        keys, values = self._window[:, slots]
        seen = self._filled[slots]
        guesses: list[tuple[int, ...]] = [() for _ in sequences]
        given: list[list[Tensor]] = [[] for _ in sequences]
        for ahead in range(self._num_drafts):
            if ahead:
                key, value = head.keys_values(fused, positions)
                keys = torch.cat((keys, key[:, None]), dim=1)
                values = torch.cat((values, value[:, None]), dim=1)
                seen = torch.cat((seen, seen.new_ones(len(seen), 1)), dim=1)
            attended = nn.functional.scaled_dot_product_attention(
                head.queries(fused, positions)[:, :, None],
                keys.transpose(1, 2),
                values.transpose(1, 2),
                attn_mask=seen[:, None, None],
                enable_gqa=True,
            )
            features = head.finish(fused, attended.flatten(1))
            tokens, drawn_from = draw_drafts(head.logits(features, self._output), states, guesses)
            for place, (token, one) in enumerate(zip(tokens, drawn_from, strict=True)):
                guesses[place] += (token,)
                if one is not None:
                    given[place].append(one)
            fused = head.fuse(self._embedding(torch.tensor(tokens, device=device)), features)
            positions = positions + 1
        return [
            Proposal(mine, torch.stack(rows) if rows else None)
            for mine, rows in zip(guesses, given, strict=True)
        ]

    def _catch_up(self, sequences: list[Sequence], slots: Tensor) -> Tensor:
        """Compute keys of all states shown; what the layer reads at each last one, [S, hidden]."""
        features: list[Tensor] = []
        tokens: list[int] = []
        positions: list[int] = []
        owners: list[int] = []
        lasts: list[int] = []
        for place, one in enumerate(sequences):
            end = len(one.tokens) - 1
            for first, rows in self._shown.pop(one):
                start, stop = max(first, end - WINDOW), min(first + len(rows), end)
                if start < stop:
                    features.append(rows[start - first : stop - first])
                    tokens += one.tokens[start + 1 : stop + 1]
                    positions += range(start, stop)
                    owners += [place] * (stop - start)
            lasts.append(len(tokens) - 1)
        at = torch.tensor(positions, device=slots.device)
        embedded = self._embedding(torch.tensor(tokens, device=slots.device))
        fused = self._head.fuse(embedded, self._head.features(torch.cat(features)))
        rows_of = slots[torch.tensor(owners, device=slots.device)]
        for part, found in zip(self._window, self._head.keys_values(fused, at), strict=True):
            part[rows_of, at % WINDOW] = found
        self._filled[rows_of, at % WINDOW] = True
        return fused[lasts]

    def _slot(self, sequence: Sequence, beside: list[Sequence]) -> int:
        """The place of a sequence, if need be that of one that does not run now."""
        slot = self._slots.pop(sequence, None)
        if slot is None:
            if not self._free:
                idle = next(one for one in self._slots if one not in beside)
                self._free.append(self._slots.pop(idle))
            slot = self._free.pop()
            self._filled[slot] = False
        self._slots[sequence] = slot
        return slot
