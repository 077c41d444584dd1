"""Embeddings: the mean of the last hidden states over a prompt, of length one.

A prompt is a sequence like any other, so embedding shares steps with answers and is chunked like
them; it asks for no logits and ends with its prompt. Nothing may come out of the prefix cache here,
because a token that is not computed has no hidden state.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ridgeline.batching.sequence import Request, Sequence
from ridgeline.serve.messages import Embed, Embedded
from ridgeline.serve.sampling.finite import check_finite


@dataclass(slots=True, eq=False)
class _Prompt:
    """One that is being embedded."""

    message: Embed
    place: int
    total: Tensor | None = None
    """Sum of the hidden states so far, float32."""
    counted: int = 0
    """Tokens in the sum; a preempted sequence computes some again."""


class Embeddings:
    """All `Embed` messages under way."""

    def __init__(self) -> None:
        self._of: dict[Sequence, _Prompt] = {}
        self._vectors: dict[str, dict[int, tuple[float, ...]]] = {}
        self._adapters: dict[str, str] = {}
        """Name that each message asks for."""

    def __contains__(self, sequence: Sequence) -> bool:
        return sequence in self._of

    def open(self, message: Embed, now: float, salt: str) -> list[Sequence]:
        """A sequence for each prompt; `salt` as in `request_of`."""
        self._vectors[message.id] = {}
        self._adapters[message.id] = message.adapter
        sequences = []
        for place, prompt in enumerate(message.prompts):
            request = Request(
                id=f"{message.id}/{place}",
                prompt=prompt,
                max_tokens=1,
                arrival=now,
                adapter=salt,
                reuse_prefix=False,
            )
            sequence = Sequence(request=request, tokens=list(prompt))
            self._of[sequence] = _Prompt(message, place)
            sequences.append(sequence)
        return sequences

    def is_open(self, message_id: str) -> bool:
        """Whether a message of this id is under way."""
        return message_id in self._vectors

    def close(self, message_id: str) -> list[Sequence]:
        """Forget a message; returns what is still to be ended of it."""
        self._vectors.pop(message_id, None)
        self._adapters.pop(message_id, None)
        mine = [one for one, prompt in self._of.items() if prompt.message.id == message_id]
        for sequence in mine:
            del self._of[sequence]
        return mine

    def open_ids(self) -> list[str]:
        """Of messages under way."""
        return list(self._vectors)

    def adapters(self) -> set[str]:
        """Names in use."""
        return set(self._adapters.values())

    def id_of(self, sequence: Sequence) -> str:
        """Of the message that a sequence belongs to."""
        return self._of[sequence].message.id

    def add(self, sequence: Sequence, start: int, states: Tensor) -> Embedded | None:
        """Take in the hidden states [T, hidden] of tokens from `start` on.

        Returns:
            The answer to the whole message, when this was the last of it.

        Raises:
            NotFinite: The model gave NaN or infinities.
        """
        prompt = self._of[sequence]
        new = states[max(0, prompt.counted - start) :].float().sum(0)
        prompt.total = new if prompt.total is None else prompt.total + new
        prompt.counted = max(prompt.counted, start + len(states))
        if prompt.counted < len(sequence.tokens):
            return None
        check_finite(prompt.total)
        # The direction of the mean is that of the sum.
        vector = torch.nn.functional.normalize(prompt.total, dim=0)
        del self._of[sequence]
        vectors = self._vectors[prompt.message.id]
        vectors[prompt.place] = tuple(vector.tolist())
        if len(vectors) < len(prompt.message.prompts):
            return None
        del self._vectors[prompt.message.id], self._adapters[prompt.message.id]
        found = tuple(vectors[place] for place in range(len(vectors)))
        return Embedded(id=prompt.message.id, vectors=found)
