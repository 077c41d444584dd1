"""Ways of batching side by side, request by request: the JSON of `ridgeline simulate batching`."""

from __future__ import annotations

from ridgeline.records.finite import Computed
from ridgeline.records.load_test import Percentiles


class PlayedRequest(Computed, frozen=True, kw_only=True):
    """One request on its way; seconds from the run's start, None where it never came so far."""

    arrived_seconds: float
    begun_seconds: float | None
    """Its prompt began to be computed."""
    first_token_seconds: float | None
    ended_seconds: float | None
    output_tokens: int


class PlayedPlaces(Computed, frozen=True, kw_only=True):
    """Where the requests are at the moment that is looked at, by number."""

    queue: list[int]
    prefill: list[int]
    decode: list[int]
    done: list[int]


class PlayedBatching(Computed, frozen=True, kw_only=True):
    """One way of batching under the load."""

    batching: str
    ttft_seconds: Percentiles | None
    itl_seconds: Percentiles | None
    ended_seconds: float
    """The last request's end."""
    output_tokens_per_second: float
    """Over the whole run."""
    requests: list[PlayedRequest]
    at_moment: PlayedPlaces


class BatchingPlayback(
    Computed, frozen=True, kw_only=True, tag_field="record", tag="batching-playback"
):
    """The same requests under every way of batching."""

    model: str
    gpu: str
    max_sequences: int
    rate_per_second: float
    seed: int
    moment_seconds: float
    """The moment that is looked at, the same for all."""
    ways: list[PlayedBatching]
    assumed: tuple[str, ...] = ()
    """What is assumed of device, engine and cache: neither measured nor given."""
