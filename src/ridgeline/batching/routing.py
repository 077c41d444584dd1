"""Which of several equal engines should get a request: the one where it starts soonest.

Every replica is given a cost in tokens, the tokens that are computed before this request's first:

    uncached(i)     tokens of the prompt that replica i has not seen lately
  + pending(i)      prompt tokens sent there that have not brought their first token yet
  + 32 · open(i)    what running requests add to each step
  + adapter(i)      a LoRA adapter that would have to be read first
  + pressure(i)     its KV cache is nearly full: running requests would be thrown out

The cheapest one gets it. So a shared prefix draws requests together, but only as long as the load
it piles up is smaller than the computation it saves: for any other replica j,
load(i) − load(j) ≤ uncached(j) − uncached(i).

What a replica has cached is not asked but guessed from what was sent there: the names of its
prompts' blocks (`prefix.py`), forgotten after a while or when there are more than fit into its
cache. A wrong guess costs time, never correctness.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ridgeline.batching.pool import prefix_hashes

OPEN_TOKENS = 32
"""A running request's share in the steps until another's first token."""
ADAPTER_TOKENS = 512
"""Reading an adapter holds an engine up for about as long."""
PRESSURE_FROM = 0.9
"""Share of KV blocks in use from which requests are being preempted."""
PRESSURE_TOKENS = 4096
"""The cost of a full cache: a preempted request computes its whole context again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaLoad:
    """What is known of one replica at the moment."""

    open: int = 0
    """Requests there, running or waiting."""
    pending_tokens: int = 0
    """Uncached prompt tokens of those without a first token yet."""
    cache_usage: float = 0.0
    adapters: tuple[str, ...] = ()
    """The adapters that it has in memory."""


@dataclass(frozen=True, slots=True)
class Route:
    """A replica, and how many tokens of the prompt it has to compute."""

    replica: int
    uncached_tokens: int


@dataclass(slots=True)
class _SeenBlocks:
    """Names of prompt blocks that one replica computed, the least recently used first."""

    most_blocks: int
    at: dict[bytes, float] = field(default_factory=dict)

    def add(self, chain: Sequence[bytes], now: float) -> None:
        """These blocks are cached there as of now."""
        for block in chain:
            self.at.pop(block, None)
            self.at[block] = now
        while len(self.at) > self.most_blocks:
            del self.at[next(iter(self.at))]

    def matched(self, chain: Sequence[bytes], since: float) -> int:
        """Blocks from the first on that were added or matched at `since` or later."""
        count = 0
        for block in chain:
            if self.at.get(block, since - 1.0) < since:
                break
            count += 1
        return count


class Routes:
    """Remembers what went where, and chooses."""

    def __init__(
        self, most_blocks: Sequence[int], *, block_size: int = 16, expiry_seconds: float = 600.0
    ) -> None:
        """Begin with nothing sent.

        Args:
            most_blocks: Of each replica's KV cache.
            block_size: Tokens of a KV block.
            expiry_seconds: After which a prefix that was not used again counts as evicted.
        """
        self._block_size = block_size
        self._expiry_seconds = expiry_seconds
        self._seen = [_SeenBlocks(blocks) for blocks in most_blocks]

    def choose(
        self, prompt: Sequence[int], adapter: str, loads: Sequence[ReplicaLoad | None], now: float
    ) -> Route | None:
        """The replica with the least cost; of equals, the one that was used least lately.

        Args:
            prompt: Token ids.
            adapter: Name, or empty.
            loads: One per replica; None: it takes no requests (down, or being drained).
            now: Seconds on any clock that does not go back.

        Returns:
            None: no replica takes requests.
        """
        return self.cheapest(self._chain(prompt, adapter), len(prompt), adapter, loads, now)

    def cheapest(
        self,
        chain: Sequence[bytes],
        num_tokens: int,
        adapter: str,
        loads: Sequence[ReplicaLoad | None],
        now: float,
    ) -> Route | None:
        """The replica with the least cost, for a prompt with blocks of these names."""
        best: tuple[float, float, int, int] | None = None
        for replica, load in enumerate(loads):
            if load is None:
                continue
            seen = self._seen[replica]
            matched = seen.matched(chain, now - self._expiry_seconds) * self._block_size
            uncached = max(1, num_tokens - matched)
            last_used = next(reversed(seen.at.values()), -1.0)
            candidate = (uncached + cost(load, adapter), last_used, replica, uncached)
            best = candidate if best is None else min(best, candidate)
        return None if best is None else Route(replica=best[2], uncached_tokens=best[3])

    def remember(self, replica: int, tokens: Sequence[int], adapter: str, now: float) -> None:
        """These tokens' KV is in that replica's cache."""
        self.remember_blocks(replica, self._chain(tokens, adapter), now)

    def remember_blocks(self, replica: int, chain: Sequence[bytes], now: float) -> None:
        """Note that the blocks of these names are in that replica's cache."""
        self._seen[replica].add(chain, now)

    def restart(self, replica: int, most_blocks: int) -> None:
        """Forget what a replica had, which has just come up with an empty cache."""
        self._seen[replica] = _SeenBlocks(most_blocks)

    def _chain(self, tokens: Sequence[int], adapter: str) -> list[bytes]:
        return prefix_hashes(list(tokens), self._block_size, adapter)


def cost(load: ReplicaLoad, adapter: str) -> float:
    """The cost of a replica in tokens, whatever the prompt.

    >>> cost(ReplicaLoad(open=2, pending_tokens=100), adapter="")
    164.0
    """
    pressure = max(0.0, load.cache_usage - PRESSURE_FROM) / (1.0 - PRESSURE_FROM)
    missing = bool(adapter) and adapter not in load.adapters
    return (
        load.pending_tokens
        + OPEN_TOKENS * load.open
        + ADAPTER_TOKENS * missing
        + PRESSURE_TOKENS * pressure
    )
