"""The embedding of a prompt is the mean of the last hidden states over a prompt, of length one.

A prompt is a sequence like any other, so embedding shares steps with completions and is chunked
like them; it asks for no logits and ends with its prompt. Nothing may come out of the prefix cache
here, because a token that is not computed has no hidden state.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from ridgeline.batching.sequence import Request, Sequence
from ridgeline.serve.messages import Embed, Embedded
from ridgeline.serve.sampling.state import check_finite


@dataclass(slots=True, eq=False)
class OpenPrompt:
    """A prompt that is being embedded, and what its message has of the others already."""

    message: Embed
    place: int
    vectors: dict[int, tuple[float, ...]]
    """Finished vectors of the message by place, shared among its prompts."""
    total: Tensor | None = field(default=None, init=False)
    """The sum of the hidden states so far, float32."""
    counted: int = field(default=0, init=False)
    """Tokens in the sum; a preempted sequence computes some again."""

    def add(self, start: int, states: Tensor) -> bool:
        """Take in the hidden states [T, hidden] of tokens from `start` on.

        Returns:
            Whether they were the prompt's last.

        Raises:
            NotFinite: The model gave NaN or infinities.
        """
        new = states[max(0, self.counted - start) :].float().sum(0)
        self.total = new if self.total is None else self.total + new
        self.counted = max(self.counted, start + len(states))
        if self.counted < len(self.message.prompts[self.place]):
            return False
        check_finite(self.total)
        # The direction of the mean is that of the sum.
        vector = torch.nn.functional.normalize(self.total, dim=0)
        self.vectors[self.place] = tuple(vector.tolist())
        return True

    def embedded(self) -> Embedded | None:
        """The reply to the whole message; None where prompts are still under way."""
        count = len(self.message.prompts)
        if len(self.vectors) < count:
            return None
        found = tuple(self.vectors[place] for place in range(count))
        return Embedded(id=self.message.id, vectors=found)


def open_prompts(message: Embed, now: float, salt: str) -> list[tuple[Sequence, OpenPrompt]]:
    """A sequence for each prompt; only sequences of the same `salt` share prefixes."""
    vectors: dict[int, tuple[float, ...]] = {}
    found = []
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
        found.append((sequence, OpenPrompt(message, place, vectors)))
    return found
