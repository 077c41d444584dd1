"""Size, quality and speed of one model under many schemes: `ridgeline predict compression`'s JSON.

A point is what a ledger measured; a foretold scheme is computed from another measured one.
"""

from __future__ import annotations

from typing import Literal

from ridgeline.records.compression import Protocol, Speedup
from ridgeline.records.finite import Computed

PointKind = Literal["bits", "zeros", "smaller"]
"""Weights in fewer bits; weights set to zero; whole layers, heads or neurons pruned."""


class SchemePoint(Computed, frozen=True, kw_only=True):
    """One row of a ledger."""

    scheme: str
    """The scheme, after those that were applied before it (`+`); `as given` for the model."""
    kind: PointKind | None
    """What the last scheme does; None for the model as given."""
    disk_bytes: int
    smaller: float
    """Bytes of the model as given over these."""
    perplexity: float
    rise: float
    """The change of perplexity, as a share of the given model's."""
    kl_mean: float
    """From the model as given, nats per token."""
    zeros: float | None
    """Share of the blocks' weights that are zero."""
    tokens_per_second: float | None
    """Decoded beside the model as given, batch 1; None: not measured."""
    speedup: Speedup | None
    """Over the model as given, in turns with it; None: not measured."""
    fewer_reads: float | None
    """Bytes of a decode step of the model as given over these: the most that can be gained."""
    best_for_its_size: bool
    """No other shown point is both smaller and better."""
    allowed: bool
    """Whether the perplexity rises by no more than asked for."""


class ForetoldScheme(Computed, frozen=True, kw_only=True):
    """A scheme that is computed from a measured one with other bits. A prediction."""

    scheme: str
    basis: str
    """The measured scheme with the nearest number of bits, rounded in the same way."""
    disk_bytes: float
    smaller: float
    perplexity: float
    rise: float
    kl_mean: float
    fewer_reads: float | None
    measured: SchemePoint | None
    """What a ledger says of this very scheme, which was not used; None: it was not measured."""


class LedgerSource(Computed, frozen=True, kw_only=True):
    """How one ledger was measured."""

    command: str
    date: str
    machine: str
    torch: str | None
    ridgeline: str


class CompressionFront(Computed, frozen=True, kw_only=True, tag_field="record",
                       tag="compression-front"):  # fmt: skip
    """All points of one model, and what is foretold between them."""

    model: str
    protocol: Protocol
    """How all of them were judged."""
    most_rise: float
    """The change of perplexity, as a share: what may be lost."""
    points: list[SchemePoint]
    foretold: list[ForetoldScheme]
    smallest_allowed: str | None
    """The measured scheme of the fewest bytes within what may be lost; None: there is none."""
    notes: list[str]
    """Why a scheme that was asked for is not foretold."""
    sources: list[LedgerSource]
