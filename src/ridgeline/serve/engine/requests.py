"""All that an engine has under way: which sequences belong to which request, and what for.

A request is `n` completions of a prompt, a beam search, or prompts to embed. With `n` completions
it is one sequence until its prompt is computed; then the others fork from it, so a prompt is
computed once whatever `n` is.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from ridgeline.batching.sequence import Content, Request, Sequence, Status
from ridgeline.serve.engine.embeddings import OpenPrompt
from ridgeline.serve.messages import Delta, Submit, Times
from ridgeline.serve.model.batch import Rows
from ridgeline.serve.sampling.beams import BeamSearch
from ridgeline.serve.sampling.logprobs import PromptLogprobs
from ridgeline.serve.sampling.state import SamplingState
from ridgeline.serve.vision.features import PlacedImage


@dataclass(slots=True, eq=False)
class OpenCompletion:
    """A completion that is being generated."""

    submit: Submit
    sequence: Sequence
    state: SamplingState
    arrived: float
    siblings: tuple[SamplingState, ...] = ()
    """States of the request's further completions, until they fork from this one."""
    prompt_logprobs: PromptLogprobs | None = None
    """Log-probabilities of the prompt's tokens, until they have been sent."""


@dataclass(slots=True, eq=False)
class OpenSearch:
    """A beam search that is under way."""

    beams: BeamSearch
    first: Sequence
    """The sequence of the prompt, whose times and counts are the request's."""
    arrived: float


@dataclass(slots=True)
class _OpenRequest:
    adapter: str
    images: tuple[PlacedImage, ...]
    sequences: list[Sequence] = field(default_factory=list)


class RequestBooks:
    """The books of an engine, by request and by sequence."""

    def __init__(self) -> None:
        self.completions: dict[Sequence, OpenCompletion] = {}
        self.searches: dict[Sequence, OpenSearch] = {}
        self.prompts: dict[Sequence, OpenPrompt] = {}
        """Prompts that are being embedded."""
        self.adapter_indices: dict[Sequence, int] = {}
        """Indices of the adapters of sequences that have one."""
        self.images: dict[Sequence, tuple[PlacedImage, ...]] = {}
        """Images of the prompts that have some."""
        self.rows_of: dict[Sequence, Rows] = {}
        """Sequences that want logits of other tokens than those that sample."""
        self.handed_over: dict[str, Sequence] = {}
        """Sequences of requests that were prefilled here for another engine to fetch."""
        self._requests: dict[str, _OpenRequest] = {}
        self._id_of: dict[Sequence, str] = {}

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._requests

    @property
    def ids(self) -> list[str]:
        """The ids of all requests under way, and of those that wait to be fetched."""
        return [*self._requests, *self.handed_over]

    @property
    def adapters(self) -> set[str]:
        """Names of the adapters that requests under way use."""
        return {one.adapter for one in self._requests.values()}

    @property
    def feature_bytes(self) -> int:
        """The size of the features of all images that requests under way have."""
        held = {
            id(image.features): image.features.nbytes
            for images in self.images.values()
            for image in images
        }
        return sum(held.values())

    def id_of(self, sequence: Sequence) -> str:
        """The id of the request that a sequence belongs to."""
        return self._id_of[sequence]

    def sequences(self, request_id: str) -> list[Sequence]:
        """All sequences of a request; none of an unknown one."""
        found = self._requests.get(request_id)
        return [] if found is None else list(found.sequences)

    def add(
        self,
        request_id: str,
        sequence: Sequence,
        what: OpenCompletion | OpenSearch | OpenPrompt,
        *,
        adapter: str,
        index: int,
        images: tuple[PlacedImage, ...] = (),
    ) -> None:
        """Note down a sequence, what it is for, and its adapter's name and index (0: none).

        The images of a request come with its first sequence.
        """
        match what:
            case OpenCompletion():
                self.completions[sequence] = what
            case OpenSearch():
                self.searches[sequence] = what
            case OpenPrompt():
                self.prompts[sequence] = what
        if index:
            self.adapter_indices[sequence] = index
        request = self._requests.setdefault(request_id, _OpenRequest(adapter, images))
        request.sequences.append(sequence)
        if request.images:
            self.images[sequence] = request.images
        self._id_of[sequence] = request_id

    def remove(self, sequence: Sequence) -> None:
        """Strike a sequence out of all books, and its request with the last one; once is enough."""
        request_id = self._id_of.pop(sequence, None)
        if request_id is None:
            return
        request = self._requests[request_id]
        request.sequences.remove(sequence)
        if not request.sequences:
            del self._requests[request_id]
        for book in (self.completions, self.searches, self.prompts):
            book.pop(sequence, None)  # type: ignore[attr-defined]
        self.adapter_indices.pop(sequence, None)
        self.images.pop(sequence, None)
        self.rows_of.pop(sequence, None)


def request_of(submit: Submit, index: int, arrival: float, salt: str) -> Request:
    """What the scheduler needs to know of one of a request's completions.

    Args:
        submit: The request.
        index: Which of its completions.
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
        contents=tuple(
            Content(image.places[0][0], image.places[-1][1], image.digest)
            for image in submit.images
        ),
    )


def last_delta(
    delta: Delta,
    sequence: Sequence,
    arrived: float,
    *,
    output_tokens: int | None = None,
    detokenise_seconds: float = 0.0,
) -> Delta:
    """A Delta with what only a completion's last one says.

    Args:
        delta: Its tokens and text.
        sequence: Whose counts and times are the completion's.
        arrived: When the request came.
        output_tokens: Where they are not the sequence's.
        detokenise_seconds: What its text took.
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
            detokenise=detokenise_seconds,
        ),
    )


def search_deltas(search: OpenSearch, now: float) -> list[Delta]:
    """The last and only Delta of each completion that a search has found, or was to find."""
    beams, first = search.beams, search.first
    if beams.done:
        found = beams.deltas()
    else:
        found = [
            Delta(id=beams.submit.id, index=index, finish_reason="abort")
            for index in range(beams.submit.n)
        ]
    if first.status is Status.FINISHED:
        first.finished_at = now  # the search's end, not that of its first beam
    return [
        last_delta(delta, first, search.arrived, output_tokens=len(delta.tokens)) for delta in found
    ]
