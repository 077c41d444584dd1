"""What several engines say, as if they were one, and what is said of a fleet."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec

from ridgeline.serve.messages import MemoryLedger, Ready, Stats

_LARGEST = ("at", "step_age_seconds")
_SHARES = ("cache_usage",)
_COUNTERS = (
    "steps",
    "prompt_tokens",
    "generation_tokens",
    "prefix_queries",
    "prefix_hits",
    "preemptions",
    "wasted_tokens",
    "draft_rounds",
    "drafted_tokens",
    "accepted_tokens",
    "step_seconds",
    "collective_seconds",
    "collective_bytes",
    "kv_transfers",
    "kv_transfer_bytes",
    "kv_transfer_seconds",
)


class RemoteReport(msgspec.Struct, frozen=True, kw_only=True):
    """One host of the cluster at the moment; in `/health`."""

    address: str
    role: Literal["prefill", "decode"]
    up: bool
    why: str = ""
    """Why it is not."""
    open: int = 0
    """Requests of this front that are there."""


class FleetReport(msgspec.Struct, frozen=True, kw_only=True):
    """The fleet at one moment; in `/health` and `/metrics`."""

    desired: int
    """What the policy wanted last."""
    ready: int
    starting: int
    """Processes that load their model, for the first time or again."""
    draining: int
    """Processes that finish what they have, or are ending."""
    replica_seconds: float
    """Time that processes have existed so far, summed: what a fleet costs."""
    startup_seconds: float | None
    """How long the last start took, from the process's beginning until it took requests."""


def combined_stats(all_stats: Sequence[Stats], past: Iterable[Stats] = ()) -> Stats:
    """The sum of counts, the largest of times, the mean of the caches' shares.

    Adapters are those that every engine has. Of engines of the `past` only the counters remain, so
    that these never go back.
    """
    first, *others = all_stats
    total = msgspec.structs.asdict(first)
    for stats in others:
        for name, value in msgspec.structs.asdict(stats).items():
            if name in _LARGEST:
                total[name] = max(total[name], value)
            elif name == "adapters":
                total[name] = tuple(one for one in total[name] if one in value)
            elif isinstance(value, bool):
                total[name] = total[name] or value
            else:
                total[name] += value
    for name in _SHARES:
        total[name] /= len(all_stats)
    for stats in past:
        for name in _COUNTERS:
            total[name] += getattr(stats, name)
    return Stats(**total)


def combined_ready(all_ready: Sequence[Ready]) -> Ready:
    """Memory and blocks are added; a request must fit into the smallest of them."""
    first = all_ready[0]
    longest = min(ready.max_length for ready in all_ready)
    ledgers = [ready.ledger for ready in all_ready]
    rows = tuple(
        msgspec.structs.replace(row, what=f"{row.what} of engine {index}")
        for index, ledger in enumerate(ledgers)
        for row in ledger.rows
    )
    tokens = sum(ledger.tokens for ledger in ledgers)
    ledger = MemoryLedger(
        rows=rows if len(ledgers) > 1 else ledgers[0].rows,
        total_bytes=sum(ledger.total_bytes for ledger in ledgers),
        limit_bytes=sum(ledger.limit_bytes for ledger in ledgers),
        num_blocks=sum(ledger.num_blocks for ledger in ledgers),
        block_size=ledgers[0].block_size,
        bytes_per_token=ledgers[0].bytes_per_token,
        tokens=tokens,
        max_length=longest,
        ranks=ledgers[0].ranks,
        largest_concurrency=sum(ledger.largest_concurrency for ledger in ledgers),
        layers="; ".join(dict.fromkeys(ledger.layers for ledger in ledgers)),
    )
    adapters = tuple(a for a in first.adapters if all(a in ready.adapters for ready in all_ready))
    return msgspec.structs.replace(first, ledger=ledger, max_length=longest, adapters=adapters)
