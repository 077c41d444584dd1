"""What becomes of each request: its sequences, how they are sampled, what was sent.

A request with `n` answers is one sequence until its prompt is computed; then the others fork from
it, so a prompt is computed once whatever `n` is.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from ridgeline.batching.sequence import Request, Sequence
from ridgeline.serve.messages import Delta, Submit, Times
from ridgeline.serve.sampling.prompt_logprobs import PromptLogprobs
from ridgeline.serve.sampling.state import SamplingState


@dataclass(slots=True, eq=False)
class Answer:
    """One of the answers to a request."""

    submit: Submit
    sequence: Sequence
    state: SamplingState
    arrived: float
    siblings: tuple[SamplingState, ...] = ()
    """Of the further answers, until they fork from this one."""
    prompt_logprobs: PromptLogprobs | None = None
    """Until they have been sent."""

    @property
    def index(self) -> int:
        """Which of the request's answers."""
        return self.state.index


class Answers:
    """All open answers, by sequence and by request."""

    def __init__(self) -> None:
        self.of: dict[Sequence, Answer] = {}
        self._by_id: dict[str, dict[int, Answer]] = {}

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._by_id

    def add(self, answer: Answer) -> None:
        """An answer begins."""
        self.of[answer.sequence] = answer
        self._by_id.setdefault(answer.submit.id, {})[answer.index] = answer

    def remove(self, answer: Answer) -> None:
        """It ended."""
        del self.of[answer.sequence]
        mine = self._by_id[answer.submit.id]
        del mine[answer.index]
        if not mine:
            del self._by_id[answer.submit.id]

    def of_request(self, request_id: str) -> list[Answer]:
        """Its open answers."""
        return list(self._by_id.get(request_id, {}).values())

    def adapters(self) -> set[str]:
        """Names in use."""
        return {answer.submit.adapter for answer in self.of.values()}


def request_of(submit: Submit, index: int, arrival: float, salt: str) -> Request:
    """What the scheduler needs to know.

    Args:
        submit: The request.
        index: Which of its answers.
        arrival: On the engine's clock.
        salt: Only sequences with the same one share prefixes.
    """
    return Request(
        id=submit.id if index == 0 else f"{submit.id}/{index}",
        prompt=submit.prompt,
        max_tokens=submit.sampling.max_tokens,
        arrival=arrival,
        priority=submit.priority,
        adapter=salt,
        prefill_only=submit.handover,
        reuse_prefix=submit.sampling.prompt_logprobs is None,
    )


def last_delta(
    delta: Delta, sequence: Sequence, arrived: float, *, output_tokens: int | None = None
) -> Delta:
    """With what only an answer's last Delta says.

    Args:
        delta: Its tokens and text.
        sequence: Whose counts and times are the answer's.
        arrived: When the request came.
        output_tokens: Where they are not the sequence's.
    """
    return msgspec.structs.replace(
        delta,
        prompt_tokens=len(sequence.request.prompt),
        cached_tokens=sequence.cached_tokens,
        output_tokens=sequence.num_generated if output_tokens is None else output_tokens,
        num_preemptions=sequence.num_preemptions,
        wasted_tokens=sequence.wasted_tokens,
        times=Times(
            arrived=arrived,
            scheduled=sequence.scheduled_at,
            first_token=sequence.first_token_at,
            finished=sequence.finished_at,
        ),
    )
