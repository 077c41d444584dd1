"""What is remembered of one request: for its log line, its usage and the metrics."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from ridgeline.serve.http.protocol.usage import PromptDetails, Usage
from ridgeline.serve.messages import Delta


@dataclass(slots=True)
class Record:
    """Filled as the request goes on."""

    request_id: str
    began: float = field(default_factory=time.monotonic)
    """When its first byte was seen, on this process's clock."""
    model: str = ""
    user: str | None = None
    metadata: dict[str, str] | None = None
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    num_preemptions: int = 0
    wasted_tokens: int = 0
    finish_reasons: list[str] = field(default_factory=list)
    error: str | None = None

    def note(self, delta: Delta) -> None:
        """Count one delta's tokens; the last one of an answer says the rest."""
        self.output_tokens += len(delta.tokens)
        if delta.finish_reason is None:
            return
        self.finish_reasons.append(delta.finish_reason)
        self.num_preemptions += delta.num_preemptions
        self.wasted_tokens += delta.wasted_tokens
        if delta.index == 0:  # the answers to one prompt share it
            self.prompt_tokens += delta.prompt_tokens
            self.cached_tokens += delta.cached_tokens

    @property
    def usage(self) -> Usage:
        """As the API tells it."""
        return Usage(
            prompt_tokens=self.prompt_tokens,
            completion_tokens=self.output_tokens,
            total_tokens=self.prompt_tokens + self.output_tokens,
            prompt_tokens_details=PromptDetails(cached_tokens=self.cached_tokens),
        )

    def fields(self) -> dict[str, object]:
        """For the log: what is known and not zero."""
        found = {name: getattr(self, name) for name in self.__slots__ if name != "began"}
        return {name: value for name, value in found.items() if value}
