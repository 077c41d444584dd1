"""What is noted down of requests: times and counts, no judgement."""

from __future__ import annotations

from dataclasses import dataclass, field

CANCELLED = "cancelled"
"""Error of a request that an interruption cut off."""


@dataclass(slots=True, kw_only=True)
class RequestStamps:
    """One request and its completion; all times in seconds from the run's start."""

    planned: float
    """When it should be sent; in a closed loop, when the place before it became free."""
    sent: float | None = None
    """When its head was written."""
    connect_seconds: float = 0.0
    """Part of `sent - planned` that was spent on a new connection."""
    begun: float | None = None
    """When its first step began; None: it did not, or it cannot be seen from outside."""
    chunks: list[float] = field(default_factory=list)
    """When each chunk with text in it was read."""
    ended: float = 0.0
    prompt_tokens: int | None = None
    cached_tokens: int = 0
    output_tokens: int | None = None
    """Tokens by the server's usage; None: it sent none."""
    finish_reason: str = ""
    error: str = ""
    """What went wrong; empty: nothing did."""

    @property
    def ok(self) -> bool:
        """Whether the request was completed in full."""
        return not self.error

    @property
    def send_lag(self) -> float | None:
        """The delay by this program, not by the network; None: it was never sent."""
        return None if self.sent is None else self.sent - self.planned - self.connect_seconds

    @property
    def ttft(self) -> float:
        """Seconds from the planned time to the first chunk."""
        return self.chunks[0] - self.planned

    @property
    def e2e(self) -> float:
        """Seconds from the planned time to the last chunk."""
        return self.chunks[-1] - self.planned

    @property
    def tpot(self) -> float | None:
        """Seconds per token after the first; None with fewer than two, or without usage."""
        if self.output_tokens is None or self.output_tokens < 2:
            return None
        return (self.chunks[-1] - self.chunks[0]) / (self.output_tokens - 1)

    def stalls(self) -> list[float]:
        """The gaps between chunks."""
        return [after - before for before, after in zip(self.chunks, self.chunks[1:], strict=False)]

    def gaps(self) -> list[float] | None:
        """Gaps before each token after the first; None where the server sent no usage.

        The further tokens of a bundle count 0, whichever bundle they were in: with n tokens in c
        chunks these are the c - 1 gaps and n - c zeros, so the sum of tokens is all that is needed.
        """
        if self.output_tokens is None:
            return None
        return self.stalls() + [0.0] * (self.output_tokens - len(self.chunks))


@dataclass(slots=True, kw_only=True)
class RunStamps:
    """What came of a run."""

    exchanges: list[RequestStamps] = field(default_factory=list)
    """Requests in the order of sending; those that were cut off have the error `CANCELLED`."""
    sent_seconds: float = 0.0
    """When the last request was sent."""
    interrupted: bool = False
