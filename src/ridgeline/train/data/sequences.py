"""What one sample is: a sequence of tokens, its labels and its positions.

packed    Sequence i is tokens [i·S, (i+1)·S) of the stream and their successors: each token is a
          target exactly once an epoch (but the very first). The last one is filled up with
          end-of-document tokens that no loss is taken of.
masked    packed, and a token that begins a document is no target; positions restart with it.
padded    Sequence i is document i, cut off or filled up to S.

S: tokens in a sequence. Between processes samples travel as `SequenceWindows`, in the two or four
bytes that a token has on disk; the int64 rows of a `Batch` are made of them where they are wanted.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ridgeline.errors import InputError
from ridgeline.records.recipe import RecipeData
from ridgeline.train.batch import IGNORED
from ridgeline.train.data.shards import Indices, Tokens, TokenStream, token_type


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceWindows:
    """Samples as they lie in the shards, each with the token that follows its last."""

    tokens: Tokens
    """[samples, S + 1]; beyond the end of what there is, end-of-document tokens."""
    lengths: Indices
    """Tokens that are there, for each sample."""
    begins: Indices
    """Places in `tokens`, row after row, that begin a document and so are no targets; never the
    first of a row. Empty where documents are not masked."""

    @property
    def num_targets(self) -> int:
        """Labels that a loss is taken of."""
        return int(self.lengths.sum()) - len(self.lengths) - len(self.begins)

    def rows(self) -> npt.NDArray[np.int64]:
        """Token ids, labels and positions, [3, samples, S]."""
        samples, width = self.tokens.shape
        found = np.empty((3, samples, width - 1), np.int64)
        inputs, labels, positions = found
        inputs[:] = self.tokens[:, :-1]
        labels[:] = self.tokens[:, 1:]
        positions[:] = np.arange(width - 1)
        if self.lengths.min() < width:
            labels[np.arange(1, width) >= self.lengths[:, None]] = IGNORED
        if len(self.begins):
            row, column = np.divmod(self.begins, width)
            labels[row, column - 1] = IGNORED
            since = np.zeros((samples, width), np.int64)
            since[row, column] = column
            positions -= np.maximum.accumulate(since, axis=1)[:, :-1]
        return found

    @classmethod
    def merged(cls, parts: list[tuple[Indices, SequenceWindows]]) -> SequenceWindows:
        """Merge several sources, each given with the rows that it has in the whole."""
        samples = sum(len(rows) for rows, _ in parts)
        width = parts[0][1].tokens.shape[1]
        kind = np.result_type(*(part.tokens for _, part in parts))
        whole = cls(
            tokens=np.empty((samples, width), kind),
            lengths=np.empty(samples, np.int64),
            begins=np.concatenate(
                [rows[part.begins // width] * width + part.begins % width for rows, part in parts]
            ),
        )
        for rows, part in parts:
            whole.tokens[rows] = part.tokens
            whole.lengths[rows] = part.lengths
        return whole


@dataclass(frozen=True, slots=True, kw_only=True)
class Sequences:
    """The samples of one source, by number."""

    stream: TokenStream
    seq: int
    padded: bool
    document_mask: bool
    filler: int
    """The token beyond the end of what there is."""

    @classmethod
    def of(cls, stream: TokenStream, data: RecipeData, filler: int) -> Sequences:
        """The samples of a stream, packed or padded as the recipe says."""
        if data.seq < 1:
            raise InputError(f"data.seq is {data.seq}; it must be 1 or more")
        found = cls(
            stream=stream,
            seq=data.seq,
            padded=data.packing == "padded",
            document_mask=data.document_mask,
            filler=filler,
        )
        if not len(found):
            raise InputError(f"data: {stream.num_tokens} tokens are no sequence; give more text")
        return found

    def __len__(self) -> int:
        if self.padded:
            return self.stream.num_documents
        return max(0, -(-(self.stream.num_tokens - 1) // self.seq))

    def windows(self, numbers: Indices) -> SequenceWindows:
        """The samples that have these numbers."""
        starts, stops = self._bounds(numbers)
        stops = np.minimum(stops, self.stream.num_tokens)
        width = self.seq + 1
        lengths = stops - starts
        tokens = np.empty((len(numbers), width), token_type(self.stream.token_bytes))
        if lengths.min() < width:
            tokens[:] = self.filler
        self.stream.gather(starts, stops, tokens)
        return SequenceWindows(tokens=tokens, lengths=lengths, begins=self._begins(starts, stops))

    def _begins(self, starts: Indices, stops: Indices) -> Indices:
        if self.padded or not self.document_mask:
            return np.empty(0, np.int64)
        width = self.seq + 1
        return np.concatenate(
            [
                self.stream.starts_within(start + 1, stop) + (row * width + 1)
                for row, (start, stop) in enumerate(
                    zip(starts.tolist(), stops.tolist(), strict=True)
                )
            ]
        )

    def _bounds(self, numbers: Indices) -> tuple[Indices, Indices]:
        """The tokens of samples: S inputs and one more, or fewer."""
        if not self.padded:
            starts = numbers * self.seq
            return starts, starts + self.seq + 1
        ends = [
            (self.stream.document_start(number), self.stream.document_start(number + 1))
            for number in numbers.tolist()
        ]
        starts, stops = np.array(ends, np.int64).T
        return starts, np.minimum(stops, starts + self.seq + 1)
