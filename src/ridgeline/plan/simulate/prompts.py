"""Sequences without any text: as many tokens as asked for, and blocks that share a prefix.

A block's name (`batching/pool.py`) stands for its content and all before it, and the cache
asks for nothing else. So the names are made from the trace's ids, and tokens are only counted.
"""

from __future__ import annotations

from struct import Struct

from ridgeline.batching.load.workload import Planned
from ridgeline.batching.sequence import Request, Sequence

_NAME = Struct("<qq").pack


class Prompts:
    """Makes the sequences of a run."""

    def __init__(self, *, block_size: int, prefix_tokens: int, named: bool) -> None:
        """Nothing is shared yet.

        Args:
            block_size: Tokens of a KV block.
            prefix_tokens: Of a prompt, that one prefix id stands for.
            named: Whether anybody asks for the names of blocks.
        """
        self._named = named
        self._block_size = block_size
        self._prefix_tokens = prefix_tokens
        self._chains: dict[tuple[int, int], int] = {}
        """(chain before, id) → chain: equal beginnings up to and with that id."""
        self._made = 0

    def make(self, planned: Planned, arrival: float, *, prefill_only: bool = False) -> Sequence:
        """The sequence of one request, not queued anywhere."""
        self._made += 1
        prompt = (0,) * planned.input_tokens
        request = Request(
            id=str(self._made),
            prompt=prompt,
            max_tokens=planned.output_tokens,
            arrival=arrival,
            prefill_only=prefill_only,
        )
        return Sequence(
            request=request, tokens=list(prompt), hashes=self._names(planned) if self._named else []
        )

    def rest_of(self, prefilled: Sequence) -> Sequence:
        """The same request for another engine, which has its keys and values already."""
        asked = prefilled.request
        request = Request(
            id=asked.id, prompt=asked.prompt, max_tokens=asked.max_tokens, arrival=asked.arrival
        )
        return Sequence(
            request=request, tokens=list(prefilled.tokens), hashes=list(prefilled.hashes)
        )

    def _names(self, planned: Planned) -> list[bytes]:
        """The names of all full blocks of prompt and completion."""
        size, own = self._block_size, -self._made
        whole = (planned.input_tokens + planned.output_tokens) // size
        names: list[bytes] = []
        if planned.prefix_ids:
            chains = self._chain_of(planned.prefix_ids)
            shared = min(planned.input_tokens, len(chains) * self._prefix_tokens) // size
            for block in range(shared):
                last = (block * size + size - 1) // self._prefix_tokens
                names.append(_NAME(chains[last], block))
        names += [_NAME(own, block) for block in range(len(names), whole)]
        return names

    def _chain_of(self, prefix_ids: tuple[int, ...]) -> list[int]:
        chain, found = 0, []
        for one in prefix_ids:
            chain = self._chains.setdefault((chain, one), len(self._chains) + 1)
            found.append(chain)
        return found
