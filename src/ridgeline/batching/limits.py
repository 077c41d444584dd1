"""What a scheduler may put into one step and keep at once, and why it refuses a request."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ridgeline.batching.sequence import Request

Batching = Literal["continuous", "static", "dynamic"]
"""How sequences come and go. continuous: at every step. static: a full batch (or all that wait when
nothing runs) is started together and ends together. dynamic: as static, but a batch starts when it
is full or its oldest request has waited `dynamic_delay_seconds`."""
Order = Literal["fcfs", "priority", "shortest-prompt", "longest-prefix"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Field for field the flags of `ridgeline serve`."""

    max_tokens_per_step: int = 2048
    """Budget of a mixed step: decodes first, what is left goes to chunks of prompts."""
    max_sequences: int = 256
    """The most sequences that run at once."""
    max_length: int = 4096
    """Tokens of one sequence, prompt and completion."""
    max_waiting: int = 1024
    """The longest queue, beyond which `Scheduler.add` refuses (`QueueFull`)."""
    batching: Batching = "continuous"
    order: Order = "fcfs"
    dynamic_delay_seconds: float = 0.05
    chunked_prefill: bool = True
    """Whether prompts are computed in chunks; off: in one step, or they wait (for comparison)."""

    def most_tokens(self, request: Request, cache_tokens: int) -> int:
        """The longest that a request may become, prompt and completion.

        Args:
            request: Prompt, and how many tokens it asks for.
            cache_tokens: Tokens of one sequence that has the cache to itself.

        Raises:
            TooLong: Not even one token longer than its prompt.
        """
        prompt = len(request.prompt)
        # The last token's KV is never needed.
        most = min(prompt + request.max_tokens, self.max_length, cache_tokens + 1)
        if prompt >= most:
            raise TooLong(
                f"the prompt has {prompt} tokens and at most {most - 1} leave room for an answer"
                f" (max_length {self.max_length}, cache {cache_tokens})"
            )
        return most


class Refusal(ValueError):
    """The request was not taken; the message says why and what to change."""


class QueueFull(Refusal):
    """Too many wait already; the same request may be taken later."""


class TooLong(Refusal):
    """The request can never fit."""
