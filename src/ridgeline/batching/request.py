"""What a caller wants generated, as far as scheduling needs to know."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One prompt and how long its answer may become."""

    id: str
    prompt: tuple[int, ...]
    """Token ids, at least one."""
    max_tokens: int
    """New tokens at most, at least one."""
    arrival: float
    """Seconds on the clock whose `now` the scheduler is given."""
    priority: int = 0
    """Lower goes first, under the policy `priority`."""
    adapter: str = ""
    """Name of the LoRA adapter; sequences of different adapters share no prefix."""
    prefill_only: bool = False
    """Ends after its first token with its blocks kept, for another engine to go on from."""
    reuse_prefix: bool = True
    """Off: nothing is taken from the prefix cache, because every token's logits are wanted."""
