"""From a step of the scheduler to the tensors of one forward.

Block tables change by one block now and then, so each running sequence keeps a row in one table of
this class, and a step only appends what is new: few Python operations a sequence, none a token but
in prompts.

Shapes: T tokens, S slices, R rows with logits, M blocks of the longest sequence.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ridgeline.batching.draft_tree import depths, seen_bits
from ridgeline.batching.kept_tokens import KeptTokens
from ridgeline.batching.sequence import Sequence, Slice, Step
from ridgeline.kernels.paged_attention import PackedTokens
from ridgeline.serve.vision.axes import axes_between
from ridgeline.serve.vision.features import PlacedImage

Rows = Literal["all", "none"]
"""Which tokens of a sequence want logits, where it is not only those that sample."""


@dataclass(frozen=True, slots=True)
class SeenRows:
    """Tokens of a step whose embeddings are the features of images, I in all."""

    rows: Tensor
    """Their places in the step, [I] int64."""
    features: Tensor
    """What takes the place of their embeddings, [I, hidden]."""


@dataclass(frozen=True, slots=True)
class SequenceSpan:
    """One sequence's tokens in a step, for layers that keep a state of each sequence."""

    row: int
    """The sequence's, as long as it runs."""
    start: int
    """The position of the first one."""
    first: int
    """The place of the first one in the step."""
    count: int


@dataclass(frozen=True, slots=True)
class StepBatch:
    """PackedTokens tokens of all slices, in the step's order; T in all."""

    tokens: Tensor
    """Token ids, [T] int64."""
    positions: Tensor
    """Positions of the tokens, [T] int64."""
    packed: PackedTokens
    logit_rows: Tensor
    """The rows whose logits are wanted (every draft's too), [R] int64."""
    adapters: Tensor | None = None
    """[T] int64 index of each token's LoRA adapter, 0: none; None: no token has one."""
    seen: SeenRows | None = None
    """The tokens that stand for images; None: none does."""
    axes: Tensor | None = None
    """Positions in time, height and width, [3, T] int64; None: they are the same as `positions`."""
    spans: tuple[SequenceSpan, ...] | None = None
    """Whose tokens these are, where layers keep states; None: nobody's, who begins here."""


def spans_of(packed: PackedTokens) -> tuple[SequenceSpan, ...]:
    """The sequences of a step, each in the row of its place among them."""
    first = packed.query_starts.tolist()
    ends = packed.context_lengths.tolist()
    counts = [stop - start for start, stop in pairwise(first)]
    return tuple(
        SequenceSpan(row, end - count, start, count)
        for row, (end, start, count) in enumerate(zip(ends, first, counts, strict=False))
    )


class StepInputs:
    """Keeps a row of block ids per running sequence."""

    def __init__(
        self,
        *,
        max_sequences: int,
        block_size: int,
        device: torch.device,
        kept: KeptTokens | None = None,
        states: bool = False,
    ) -> None:
        self._block_size = block_size
        self._kept = kept
        self._states = states
        self._device = device
        self._table: NDArray[np.int32] = np.zeros((max_sequences, 16), dtype=np.int32)
        self._free = list(range(max_sequences - 1, -1, -1))
        self._rows: dict[Sequence, int] = {}
        self._known: dict[Sequence, list[int]] = {}
        """Blocks as they stand in the table."""

    def forget(self, sequence: Sequence) -> None:
        """Free the row of one that no longer runs; of one without a row, nothing."""
        row = self._rows.pop(sequence, None)
        if row is not None:
            self._free.append(row)
            del self._known[sequence]

    def batch(
        self,
        step: Step,
        *,
        rows_of: Mapping[Sequence, Rows],
        adapters: Mapping[Sequence, int],
        images: Mapping[Sequence, tuple[PlacedImage, ...]] | None = None,
    ) -> StepBatch:
        """Tensors of a step.

        Args:
            step: At least one slice.
            rows_of: Sequences that want logits of other tokens than those that sample.
            adapters: Index of each sequence's adapter where it has one.
            images: The images of each sequence's prompt where it has some.
        """
        slices = step.slices
        rows = np.array([self._row(one.sequence) for one in slices])
        starts = np.array([one.start for one in slices])
        counts = np.array([one.num_tokens for one in slices])
        ends = starts + counts
        first = np.zeros(len(slices) + 1, dtype=np.int64)
        np.cumsum(counts, out=first[1:])
        owners = np.repeat(np.arange(len(slices)), counts)
        positions = np.arange(first[-1]) - (first[:-1] - starts)[owners]
        size = self._block_size
        gone = np.array([one.sequence.dropped * size for one in slices])
        places, ends = positions - gone[owners], ends - gone
        blocks = self._table[rows[owners], places // size].astype(np.int64)
        wide = -(-int(ends.max()) // size)
        slots = blocks * size + places % size
        seen = _place_trees(slices, first, positions)
        packed = PackedTokens(
            query_starts=self._tensor(first.astype(np.int32)),
            context_lengths=self._tensor(ends.astype(np.int32)),
            block_tables=self._tensor(self._table[rows, :wide]),
            slots=self._tensor(slots),
            max_queries=int(counts.max()),
            max_context=int(ends.max()),
            seen=None if seen is None else self._tensor(seen),
            recent=None if self._kept is None else self._kept.recent,
            first=0 if self._kept is None else self._kept.first,
        )
        return StepBatch(
            tokens=self._tensor(_tokens(slices, int(first[-1]))),
            positions=self._tensor(positions),
            packed=packed,
            logit_rows=self._tensor(_logit_rows(slices, first, rows_of)),
            adapters=self._adapters(slices, counts, adapters) if adapters else None,
            seen=self._seen(slices, first, images) if images else None,
            axes=self._axes(slices, first, positions, images) if images else None,
            spans=_spans(rows, starts, first, counts) if self._states else None,
        )

    def _row(self, sequence: Sequence) -> int:
        """The sequence's row, brought up to date."""
        blocks = sequence.blocks
        row = self._rows.get(sequence)
        if row is None:
            if not self._free:
                self._grow()
            row = self._rows[sequence] = self._free.pop()
            known = self._known[sequence] = []
        else:
            known = self._known[sequence]
        if known != blocks:
            while self._table.shape[1] < len(blocks):
                self._table = np.concatenate((self._table, np.zeros_like(self._table)), axis=1)
            self._table[row, : len(blocks)] = blocks
            known[:] = blocks
        return row

    def _grow(self) -> None:
        """Twice as many rows."""
        count = len(self._table)
        self._table = np.concatenate((self._table, np.zeros_like(self._table)))
        self._free = list(range(2 * count - 1, count - 1, -1))

    def _adapters(
        self, slices: tuple[Slice, ...], counts: NDArray[np.int64], indices: Mapping[Sequence, int]
    ) -> Tensor | None:
        each = np.array([indices.get(one.sequence, 0) for one in slices])
        return self._tensor(np.repeat(each, counts)) if each.any() else None

    def _seen(
        self,
        slices: tuple[Slice, ...],
        first: NDArray[np.int64],
        images: Mapping[Sequence, tuple[PlacedImage, ...]],
    ) -> SeenRows | None:
        rows: list[NDArray[np.int64]] = []
        features: list[Tensor] = []
        for index, one in enumerate(slices):
            for image in images.get(one.sequence, ()):
                positions, found = image.between(one.start, one.start + one.count)
                if len(positions):
                    rows.append(positions - one.start + first[index])
                    features.append(found)
        if not rows:
            return None
        return SeenRows(self._tensor(np.concatenate(rows)), torch.cat(features))

    def _axes(
        self,
        slices: tuple[Slice, ...],
        first: NDArray[np.int64],
        positions: NDArray[np.int64],
        images: Mapping[Sequence, tuple[PlacedImage, ...]],
    ) -> Tensor | None:
        axes = None
        for index, one in enumerate(slices):
            placed = images.get(one.sequence)
            if placed is None or placed[0].grid is None:
                continue
            if axes is None:
                axes = np.repeat(positions[None], 3, axis=0)
            own = positions[first[index] : first[index + 1]] - one.start
            found = axes_between(placed, one.start, one.start + int(own.max()) + 1)
            axes[:, first[index] : first[index + 1]] = found[:, own]
        return None if axes is None else self._tensor(axes)

    def _tensor(self, values: NDArray[np.generic]) -> Tensor:
        tensor = torch.from_numpy(values)
        return tensor if self._device.type == "cpu" else tensor.to(self._device, non_blocking=True)


def _spans(
    rows: NDArray[np.int64],
    starts: NDArray[np.int64],
    first: NDArray[np.int64],
    counts: NDArray[np.int64],
) -> tuple[SequenceSpan, ...]:
    each = zip(rows.tolist(), starts.tolist(), first.tolist(), counts.tolist(), strict=False)
    return tuple(SequenceSpan(*one) for one in each)


def _place_trees(
    slices: tuple[Slice, ...], first: NDArray[np.int64], positions: NDArray[np.int64]
) -> NDArray[np.int64] | None:
    """Put drafts of trees where their depth says; what each query sees of its tree, 0: no tree."""
    if not any(one.parents for one in slices):
        return None
    seen = np.zeros(len(positions), dtype=np.int64)
    for index, one in enumerate(slices):
        if one.parents:
            rows = slice(first[index], first[index + 1])
            positions[rows] = one.start + np.array([0, *depths(one.parents)])
            seen[rows] = np.array(seen_bits(one.parents), dtype=np.uint64).view(np.int64)
    return seen


def _tokens(slices: tuple[Slice, ...], total: int) -> NDArray[np.int64]:
    parts = (
        (one.sequence.tokens[one.start],)
        if one.num_tokens == 1
        else chain(one.sequence.tokens[one.start : one.start + one.count], one.drafts)
        for one in slices
    )
    return np.fromiter(chain.from_iterable(parts), dtype=np.int64, count=total)


def _logit_rows(
    slices: tuple[Slice, ...], first: NDArray[np.int64], rows_of: Mapping[Sequence, Rows]
) -> NDArray[np.int64]:
    """The rows of slices that sample (last token and drafts), unless `rows_of` says otherwise."""
    rows: list[int] = []
    ends = first.tolist()
    for index, one in enumerate(slices):
        wanted = rows_of.get(one.sequence)
        if wanted == "all":
            rows.extend(range(ends[index], ends[index + 1]))
        elif wanted is None and one.samples:
            rows.extend(range(ends[index + 1] - 1 - len(one.drafts), ends[index + 1]))
    return np.array(rows, dtype=np.int64)
