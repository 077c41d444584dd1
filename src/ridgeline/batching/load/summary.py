"""What each figure of a load test means, and how it is computed from the stamps of a run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ridgeline.batching.load.stamps import CANCELLED, RequestStamps, RunStamps
from ridgeline.records.load_test import (
    Figures,
    Lengths,
    Percentiles,
    Requests,
    Slo,
    TimelinePoint,
)

DEFINITIONS = {
    "ttft_seconds": (
        "time to first token: from the planned time of sending to the first chunk with text in it;"
        " over requests"
    ),
    "ttft_from_sent_seconds": "the same from the actual time of sending",
    "tpot_seconds": (
        "time per output token: (last chunk - first chunk) / (tokens - 1) of a request with at"
        " least two tokens; over requests"
    ),
    "itl_seconds": (
        "inter-token latency: gap before each token after a request's first; the further tokens of"
        " a chunk that bundles several count 0; over tokens"
    ),
    "stall_seconds": "gap between two chunks of a request; over gaps",
    "e2e_seconds": "end to end: from the planned time of sending to the last chunk; over requests",
    "output_tokens_per_second": (
        "tokens that came in the window over its length; counted by the server's usage, never by"
        " chunks, and spread over a request's chunks evenly"
    ),
    "goodput": "requests per second, planned in the window, that met every SLO given",
    "window": (
        "from the end of the warm-up to the last sending; the drain after it is cut. Where that is"
        " shorter than two median requests: to the last answer instead"
    ),
    "failed": (
        "any status but 200, an error in the stream, no text, a stream that broke off, or time-out;"
        " none of them enters a latency"
    ),
    "send_lag": (
        "from the planned time of sending to when the request's head was written, less the time"
        " that a new connection took"
    ),
    "cpu_share": "processor time of the load tester over the time of sending; 1 is one core",
}


SLICES = 60


def summarise(run: RunStamps, warmup_seconds: float, slo: Slo) -> Figures:
    """All figures of one run."""
    window = window_of(run, warmup_seconds)
    begin, end = window
    length = max(end - begin, 1e-9)
    planned = _planned_in(run, window)
    ok = [one for one in planned if one.ok]
    all_ok = [one for one in run.exchanges if one.ok]
    stamps = _token_stamps(all_ok)
    tokens = None if stamps is None else stamps.within(begin, end)
    good = sum(meets(one, slo) for one in ok)
    return Figures(
        window_seconds=window,
        requests=_requests(run.exchanges, len(ok)),
        lengths=_lengths(ok),
        ttft_seconds=Percentiles.of([one.ttft for one in ok]),
        ttft_from_sent_seconds=Percentiles.of(
            [one.chunks[0] - one.sent for one in ok if one.sent is not None]
        ),
        tpot_seconds=Percentiles.of([t for one in ok if (t := one.tpot) is not None]),
        itl_seconds=Percentiles.of([gap for one in ok for gap in one.gaps() or ()]),
        stall_seconds=Percentiles.of([gap for one in ok for gap in one.stalls()]),
        e2e_seconds=Percentiles.of([one.e2e for one in ok]),
        requests_per_second=sum(begin <= one.ended <= end for one in all_ok) / length,
        output_tokens_per_second=None if tokens is None else tokens / length,
        total_tokens_per_second=None
        if tokens is None
        else (tokens + _prompts_within(all_ok, begin, end)) / length,
        goodput=good / length,
        goodput_share=good / len(planned) if planned else 0.0,
        in_flight=_in_flight(run.exchanges, begin, end),
    )


def request_seconds(run: RunStamps, window: tuple[float, float]) -> tuple[float, ...]:
    """End-to-end seconds of the window's answered requests, in the order they were planned."""
    ok = [one for one in _planned_in(run, window) if one.ok]
    return tuple(one.e2e for one in sorted(ok, key=lambda one: one.planned))


def _planned_in(run: RunStamps, window: tuple[float, float]) -> list[RequestStamps]:
    begin, end = window
    return [one for one in run.exchanges if begin <= one.planned <= end]


def window_of(run: RunStamps, warmup_seconds: float) -> tuple[float, float]:
    """Begin and end of what is measured: warm-up and drain are cut."""
    begin, end = warmup_seconds, run.sent_seconds
    ok = [one for one in run.exchanges if one.ok]
    if ok and end - begin < 2 * float(np.median([one.e2e for one in ok])):
        end = max(one.ended for one in ok)
    return begin, end


def meets(one: RequestStamps, slo: Slo) -> bool:
    """Whether an answered request met every objective; one that cannot be checked is not met."""
    if slo.ttft_seconds is not None and one.ttft > slo.ttft_seconds:
        return False
    if slo.e2e_seconds is not None and one.e2e > slo.e2e_seconds:
        return False
    if one.output_tokens == 1:
        return True  # there is nothing between tokens
    if slo.tpot_seconds is not None and not (one.tpot or np.inf) <= slo.tpot_seconds:
        return False
    if slo.itl_seconds is not None:
        gaps = one.gaps() or [np.inf]
        return float(np.percentile(gaps, 99)) <= slo.itl_seconds
    return True


def _requests(exchanges: Sequence[RequestStamps], in_window: int) -> Requests:
    errors = Counter(one.error for one in exchanges if one.error and one.error != CANCELLED)
    cancelled = sum(one.error == CANCELLED for one in exchanges)
    return Requests(
        sent=len(exchanges),
        ok=sum(one.ok for one in exchanges),
        failed=errors.total(),
        cancelled=cancelled,
        failures=dict(errors.most_common(8)),
        in_window=in_window,
    )


def _lengths(ok: Sequence[RequestStamps]) -> Lengths:
    counted = [one for one in ok if one.prompt_tokens and one.output_tokens is not None]
    if not counted:
        return Lengths(input_tokens=None, output_tokens=None, cached_share=None)
    prompts = sum(one.prompt_tokens or 0 for one in counted)
    return Lengths(
        input_tokens=prompts / len(counted),
        output_tokens=sum(one.output_tokens or 0 for one in counted) / len(counted),
        cached_share=sum(one.cached_tokens for one in counted) / prompts,
    )


@dataclass(frozen=True, slots=True)
class _TokenStamps:
    """Chunks of all completions: when they came, and the tokens that each is taken to hold."""

    times: np.ndarray
    tokens: np.ndarray

    def within(self, begin: float, end: float) -> float:
        """Tokens after `begin` and up to `end`, so that slices that meet share none."""
        return float(self.tokens[(self.times > begin) & (self.times <= end)].sum())


def _token_stamps(ok: Sequence[RequestStamps]) -> _TokenStamps | None:
    """A completion's tokens, spread evenly over its chunks; None where one came without usage."""
    if any(one.output_tokens is None for one in ok):
        return None
    times = [at for one in ok for at in one.chunks]
    shares = [(one.output_tokens or 0) / len(one.chunks) for one in ok]
    counts = [len(one.chunks) for one in ok]
    return _TokenStamps(np.array(times, dtype=np.float64), np.repeat(shares, counts))


def _prompts_within(ok: Sequence[RequestStamps], begin: float, end: float) -> int:
    return sum(one.prompt_tokens or 0 for one in ok if begin <= one.chunks[0] <= end)


def _in_flight(exchanges: Sequence[RequestStamps], begin: float, end: float) -> float:
    """Mean number of requests under way."""
    planned, ended = _spans(exchanges)
    return _under_way(planned, ended, begin, end)


def _spans(exchanges: Sequence[RequestStamps]) -> tuple[np.ndarray, np.ndarray]:
    planned = np.array([one.planned for one in exchanges], dtype=np.float64)
    return planned, np.array([one.ended for one in exchanges], dtype=np.float64)


def _under_way(planned: np.ndarray, ended: np.ndarray, begin: float, end: float) -> float:
    spans = np.minimum(ended, end) - np.maximum(planned, begin)
    return float(np.maximum(spans, 0.0).sum()) / max(end - begin, 1e-9)


def timeline(run: RunStamps) -> tuple[TimelinePoint, ...]:
    """The whole run in slices, warm-up and drain included."""
    exchanges = run.exchanges
    end = max([one.ended for one in exchanges], default=0.0)
    if end <= 0:
        return ()
    width = end / SLICES
    stamps = _token_stamps([one for one in exchanges if one.ok])
    planned, ended = _spans(exchanges)
    ok = np.array([one.ok for one in exchanges])
    ttfts = np.array([one.ttft if one.ok else np.nan for one in exchanges])
    points = []
    for index in range(SLICES):
        begin, stop = index * width, (index + 1) * width
        inside = (begin <= planned) & (planned < stop)
        finished = (begin < ended) & (ended <= stop)
        answered = int((finished & ok).sum())
        ttft = Percentiles.of(ttfts[inside & ok].tolist())
        tokens = None if stamps is None else stamps.within(begin, stop)
        points.append(
            TimelinePoint(
                at_seconds=begin,
                seconds=width,
                sent_per_second=int(inside.sum()) / width,
                finished_per_second=answered / width,
                failed_per_second=(int(finished.sum()) - answered) / width,
                output_tokens_per_second=None if tokens is None else tokens / width,
                in_flight=_under_way(planned, ended, begin, stop),
                ttft_p50_seconds=ttft.p50 if ttft else None,
                ttft_p99_seconds=ttft.p99 if ttft else None,
            )
        )
    return tuple(points)
