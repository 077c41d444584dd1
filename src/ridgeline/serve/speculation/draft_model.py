"""A smaller model guesses: it runs ahead of the target over a paged cache of its own.

For each sequence it keeps a shadow: the same tokens, its own blocks. Guesses that were refused are
taken back by forgetting that they were computed; their keys are overwritten. Prompts are caught up
with in chunks, so nothing larger than a step is ever computed.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ridgeline.batching.blocks import BlockCache
from ridgeline.batching.sequence import Sequence, Slice, Step
from ridgeline.errors import InputError
from ridgeline.serve.cache import KvPool
from ridgeline.serve.messages import MemoryRow
from ridgeline.serve.model.batch import StepInputs
from ridgeline.serve.model.loaded import LoadedModel
from ridgeline.serve.sampling.state import SamplingState
from ridgeline.serve.speculation.drafter import Proposal, draw_drafts


class DraftModel:
    """Guesses `num_drafts` tokens for every sequence.

    Args:
        loaded: The small model.
        vocab: Of the target; the draft's must be the same.
        num_drafts: Guesses per sequence.
        num_blocks: Of the draft's cache; as many as the target has always suffice.
        block_size: Tokens of a block.
        max_sequences: At once.
        max_tokens_per_step: ForwardOutput in one forward.

    Raises:
        InputError: The two models have different vocabularies.
    """

    needs_hidden = False

    def __init__(
        self,
        loaded: LoadedModel,
        *,
        vocab: int,
        num_drafts: int,
        num_blocks: int,
        block_size: int,
        max_sequences: int,
        max_tokens_per_step: int,
    ) -> None:
        if loaded.vocab != vocab:
            raise InputError(
                f"the draft model knows {loaded.vocab} tokens and the model {vocab}: "
                "a draft model needs the same vocabulary"
            )
        if loaded.recurrent is not None:
            raise InputError(
                "the draft model has layers that keep a state of each sequence, which cannot be"
                " taken back where a guess was wrong; give another"
            )
        self._loaded = loaded
        self._num_drafts = num_drafts
        self._budget = max_tokens_per_step
        self._longest = loaded.max_length or num_blocks * block_size
        self._cache = BlockCache(num_blocks, block_size)
        self._pool = KvPool(
            loaded.kv_shapes,
            num_blocks=num_blocks,
            block_size=block_size,
            form=loaded.kv_form,
            device=loaded.device,
        )
        self._inputs = StepInputs(
            max_sequences=max_sequences, block_size=block_size, device=loaded.device
        )
        self._shadows: dict[Sequence, Sequence] = {}

    def propose(
        self,
        sequences: list[Sequence],
        states: list[SamplingState],
        hidden: Tensor | None,  # noqa: ARG002 (the drafters' common signature)
    ) -> list[Proposal]:
        """Guesses with their distributions; none for whom the cache or the model has no room."""
        shadows = [self._caught_up(one) for one in sequences]
        at = [place for place, shadow in enumerate(shadows) if shadow is not None]
        running = [shadow for shadow in shadows if shadow is not None]
        proposals = [Proposal()] * len(sequences)
        if not running:
            return proposals
        found = self._run_ahead(running, [states[place] for place in at])
        for place, proposal in zip(at, found, strict=True):
            proposals[place] = proposal
        return proposals

    def forget(self, sequence: Sequence) -> None:
        """Free the shadow's blocks; what its prompt left there may be found again."""
        shadow = self._shadows.pop(sequence, None)
        if shadow is not None:
            shadow.num_computed = min(shadow.num_computed, len(sequence.tokens) - 1)
            shadow.tokens = list(sequence.tokens)
            self._inputs.forget(shadow)
            self._cache.free(shadow)

    def memory(self) -> list[MemoryRow]:
        """Bytes of weights and cache, for the memory ledger."""
        tokens = self._cache.num_blocks * self._cache.block_size
        return [
            MemoryRow(what="draft weights", bytes=self._loaded.weight_bytes()),
            MemoryRow(what="draft kv blocks", bytes=self._pool.bytes, note=f"{tokens} tokens"),
        ]

    def check(self) -> None:
        """Raise AssertionError if the cache's books are wrong."""
        self._cache.check(self._shadows.values())

    def _caught_up(self, sequence: Sequence) -> Sequence | None:
        """The shadow with the sequence's tokens and blocks for the guesses; None: no room."""
        settled = len(sequence.tokens)
        if settled + self._num_drafts > self._longest:
            self.forget(sequence)
            return None
        shadow = self._shadows.get(sequence)
        if shadow is None:
            shadow = Sequence(request=sequence.request, tokens=list(sequence.tokens))
            if not self._cache.admit(shadow, self._cache.known(shadow)):
                return None
            self._shadows[sequence] = shadow
        else:
            shadow.num_computed = min(shadow.num_computed, _agreeing(shadow, sequence.tokens))
            shadow.tokens[:] = sequence.tokens
        # The last guess itself is not computed.
        if not self._cache.extend(shadow, settled + self._num_drafts - 1, []):
            self.forget(sequence)
            return None
        return shadow

    @torch.inference_mode()
    def _run_ahead(self, shadows: list[Sequence], states: list[SamplingState]) -> list[Proposal]:
        settled = [len(shadow.tokens) for shadow in shadows]
        guesses: list[tuple[int, ...]] = [() for _ in shadows]
        given: list[list[Tensor | None]] = [[] for _ in shadows]
        for _ in range(self._num_drafts):
            logits = self._forward(shadows)
            tokens, drawn_from = draw_drafts(logits, states, guesses)
            for place, (token, one) in enumerate(zip(tokens, drawn_from, strict=True)):
                guesses[place] += (token,)
                given[place].append(one)
                shadows[place].tokens.append(token)
        for shadow, count in zip(shadows, settled, strict=True):
            self._cache.remember(shadow, count - 1)
        return [
            Proposal(mine, _stacked(probabilities))
            for mine, probabilities in zip(guesses, given, strict=True)
        ]

    def _forward(self, shadows: list[Sequence]) -> Tensor:
        """[S, V] logits after the last token of each; all that is not computed is."""
        rows: dict[Sequence, Tensor] = {}
        while len(rows) < len(shadows):
            left = self._budget
            slices = []
            for shadow in shadows:
                count = min(len(shadow.tokens) - shadow.num_computed, left)
                if shadow not in rows and count:
                    slices.append(Slice(shadow, shadow.num_computed, count))
                    left -= count
            batch = self._inputs.batch(Step(tuple(slices)), rows_of={}, adapters={})
            logits = iter(self._loaded.forward(batch, self._pool.layers).logits)
            for one in slices:
                if one.samples:
                    rows[one.sequence] = next(logits)
                one.sequence.num_computed += one.count
        return torch.stack([rows[shadow] for shadow in shadows])


def _agreeing(shadow: Sequence, tokens: list[int]) -> int:
    """ForwardOutput tokens that are the sequence's own; only guesses at the end can differ."""
    count = min(shadow.num_computed, len(tokens) - 1)
    while count and shadow.tokens[:count] != tokens[:count]:
        count -= 1
    return count


def _stacked(rows: list[Tensor | None]) -> Tensor | None:
    kept = [row for row in rows if row is not None]
    return torch.stack(kept) if kept else None
