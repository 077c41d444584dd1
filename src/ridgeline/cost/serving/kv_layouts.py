"""Where the keys of a batch lie: what each layout holds, wastes and reads in a decode step.

For n sequences of l_i tokens, longest L, of which M may become the longest, in blocks of B:

    layout        holds             reads           in pieces
    contiguous    n · M             Σ l_i           n             a run of M reserved for each
    padded        n · L             n · L           1             a rectangle [n, L] under a mask
    interleaved   n · L             Σ l_i           Σ l_i         token i of all side by side [L, n]
    paged         Σ ⌈l_i/B⌉ B       Σ l_i           Σ ⌈l_i/B⌉     blocks anywhere

in tokens. A padded rectangle is what a plain `generate` of a batch computes over; interleaved, the
rectangle grows by a row for everyone without being moved, but every token of a sequence lies apart
and who has ended keeps his column. Kwon et al., 2309.06180, section 2 has the first and the last.
`ridgeline serve --kv-layout` runs contiguous and paged; the two rectangles are for comparison.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class KvLayoutRow:
    """One layout for one batch."""

    layout: str
    held_bytes: float
    wasted: float
    """Share of what is held in which no token lies."""
    read_bytes: float
    """Read in one decode step of all sequences."""
    pieces: int
    """Runs of memory that the reads consist of, in each layer, for keys and for values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KvLayouts:
    """The layouts beside each other."""

    used_bytes: float
    """The keys and values that there are."""
    layouts: tuple[KvLayoutRow, ...]


def compare_kv_layouts(
    lengths: Sequence[int], max_length: int, bytes_per_token: float = 1.0, block_size: int = 16
) -> KvLayouts:
    """What a batch holds, wastes and reads in each layout of the KV cache.

    >>> found = compare_kv_layouts([100, 500], max_length=1024)
    >>> [(row.layout, row.held_bytes, row.read_bytes, row.pieces) for row in found.layouts][2:]
    [('interleaved', 1000.0, 600.0, 600), ('paged', 624.0, 600.0, 39)]

    Args:
        lengths: Tokens of each sequence now.
        max_length: Tokens that one may have.
        bytes_per_token: Of keys and values in all layers (`kv-cache-per-token`); 1: count tokens.
        block_size: Tokens of a block.
    """
    if not lengths or min(lengths) < 1 or block_size < 1 or bytes_per_token <= 0.0:
        raise ValueError("at least one sequence, and above 0: lengths, block_size, bytes_per_token")
    if max(lengths) > max_length:
        raise ValueError(f"a sequence has {max(lengths)} tokens, and max_length is {max_length}")
    count, used, longest = len(lengths), sum(lengths), max(lengths)
    blocks = sum(-(-length // block_size) for length in lengths)
    rows = {
        "contiguous": (count * max_length, used, count),
        "padded": (count * longest, count * longest, 1),
        "interleaved": (count * longest, used, used),
        "paged": (blocks * block_size, used, blocks),
    }
    return KvLayouts(
        used_bytes=used * bytes_per_token,
        layouts=tuple(
            KvLayoutRow(
                layout=layout,
                held_bytes=held * bytes_per_token,
                wasted=1.0 - used / held,
                read_bytes=read * bytes_per_token,
                pieces=pieces,
            )
            for layout, (held, read, pieces) in rows.items()
        ),
    )
