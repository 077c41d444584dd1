"""A rank's micro-batches, step after step, in an order that no world size changes.

Step k of a run with a global batch of B sequences takes samples [kB, (k+1)B) of the order; each
data rank takes its contiguous part of them, cut into micro-batches. The state of the loader is one
integer, the samples that were trained on, so a run goes on bit for bit with another number of
ranks, another micro-batch, another number of workers. What read-ahead has taken beyond that is
forgotten: it is not in the state.
"""

from __future__ import annotations

import hashlib
import warnings
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, Sampler
from torchdata.stateful_dataloader import StatefulDataLoader

from ridgeline.errors import InputError
from ridgeline.records.recipe import Recipe, RecipeData
from ridgeline.train.batch import IGNORED, Batch
from ridgeline.train.data.order import SampleOrder
from ridgeline.train.data.preparation import PreparedData
from ridgeline.train.data.sequences import Sequences, SequenceWindows
from ridgeline.train.ranks import Ranks

_STEPS_AHEAD = 2
"""Steps that each worker reads ahead."""
_NEVER = 2**62


@dataclass(frozen=True, slots=True, kw_only=True)
class Samples:
    """The samples of the whole run, by number; can be sent to a worker."""

    sources: tuple[Sequences, ...]
    order: SampleOrder

    @classmethod
    def of(cls, prepared: PreparedData, recipe: Recipe) -> Samples:
        """Mix and shuffle sources as the recipe says."""
        sources = tuple(
            Sequences.of(stream, recipe.text, prepared.end_of_document)
            for stream in prepared.sources
        )
        order = SampleOrder(
            sizes=tuple(len(source) for source in sources),
            weights=prepared.weights,
            seed=recipe.run.seed,
            shuffle=recipe.text.shuffle,
        )
        return cls(sources=sources, order=order)

    def read(self, start: int, stop: int) -> SequenceWindows:
        """Samples `start` … `stop - 1`."""
        source, sequence = self.order.between(start, stop)
        if len(self.sources) == 1:
            return self.sources[0].windows(sequence)
        here = [(number, np.flatnonzero(source == number)) for number in range(len(self.sources))]
        return SequenceWindows.merged(
            [(rows, self.sources[s].windows(sequence[rows])) for s, rows in here if len(rows)]
        )


class Loader:
    """An endless iterator over steps, each a list of this rank's micro-batches on its device."""

    def __init__(self, prepared: PreparedData, recipe: Recipe, ranks: Ranks) -> None:
        self._samples = Samples.of(prepared, recipe)
        self._place = _Place.of(ranks)
        self._micro_batch = recipe.layout.micro_batch
        self._data = recipe.text
        self._workers = recipe.text.workers
        self._device = ranks.device
        self._identity = _identity(prepared, recipe)
        self._taken = 0
        self._running: Iterator[Tensor] | None = None
        self._counts: deque[int] = deque()
        self.targets = 0
        """Target tokens of the step last handed out, this rank's, counted on the host."""

    def __iter__(self) -> Iterator[list[Batch]]:
        return self

    def __next__(self) -> list[Batch]:
        if self._running is None:
            self._running = self._start()
        rows = next(self._running)
        self.targets = self._counts.popleft()
        self._taken += self._place.global_batch
        return [_batch(part, self._data) for part in rows.split(self._micro_batch, dim=1)]

    def state_dict(self) -> dict[str, Any]:
        """What a later run needs to go on after the last step that was handed out."""
        return {"samples": self._taken, "identity": self._identity}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there.

        Raises:
            InputError: The state is of other data, another order or other sequences.
        """
        if state["identity"] != self._identity:
            raise InputError(
                "the checkpoint was trained on other data: text, tokenizer, seed, data.seq,"
                " packing, shuffle or weights have changed; restore them, or start anew"
            )
        self.close()
        self._taken = int(state["samples"])

    def close(self) -> None:
        """Stop reading ahead; a later `next` starts again."""
        self._running = None
        self._counts.clear()

    def figures(self) -> dict[str, Any]:
        """No figures are told, as the step's phases say how long it waited."""
        return {}

    def take_notes(self) -> str:
        """No notes are told, as what is no text was said when it was prepared."""
        return ""

    def _counted(self, steps: Iterator[SequenceWindows]) -> Iterator[Tensor]:
        """Count before the copy: on the device, the host would have to wait for it."""
        for windows in steps:
            self._counts.append(windows.num_targets)
            yield torch.from_numpy(windows.rows())

    def _start(self) -> Iterator[Tensor]:
        with warnings.catch_warnings():
            # torchdata 0.11 calls what torch 2.13 has deprecated.
            warnings.filterwarnings("ignore", "'set_vital' is deprecated", UserWarning)
            steps = StatefulDataLoader(
                _Steps(self._samples, self._place),
                batch_size=None,
                sampler=_Starts(self._taken, self._place.global_batch),
                num_workers=self._workers,
                prefetch_factor=_STEPS_AHEAD if self._workers else None,
                # Arrays of two or four bytes a token go through a pipe sooner than tensors through
                # shared memory.
                collate_fn=_as_it_is,
                # The state is `_taken`; the loader's own, of each step, is of no use.
                snapshot_every_n_steps=_NEVER,
                multiprocessing_context="fork" if self._workers else None,
            )
        return to_device(self._counted(iter(steps)), self._device)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """This rank among those that read different sequences."""

    index: int
    size: int
    global_batch: int

    @classmethod
    def of(cls, ranks: Ranks) -> _Place:
        return cls(
            index=ranks.index("data"),
            size=ranks.size("data"),
            global_batch=ranks.layout.global_batch,
        )


def _as_it_is(windows: SequenceWindows) -> SequenceWindows:
    return windows


def _batch(rows: Tensor, data: RecipeData) -> Batch:
    inputs, labels, positions = rows
    restarts = data.document_mask and data.packing == "packed"
    return Batch(input_ids=inputs, labels=labels, position_ids=positions, natural=not restarts)


class _Steps(Dataset[SequenceWindows]):
    """This rank's part of the step that begins with a sample."""

    def __init__(self, samples: Samples, place: _Place) -> None:
        self._samples = samples
        self._offset = place.index * (place.global_batch // place.size)
        self._count = place.global_batch // place.size

    def __getitem__(self, start: int) -> SequenceWindows:
        return self._samples.read(start + self._offset, start + self._offset + self._count)


class _Starts(Sampler[int]):
    """The first sample of each step, without end."""

    def __init__(self, start: int, step: int) -> None:
        self._start = start
        self._step = step

    def __iter__(self) -> Iterator[int]:
        start = self._start
        while True:
            yield start
            start += self._step


def _identity(prepared: PreparedData, recipe: Recipe) -> str:
    """A checksum of all that decides which tokens sample i has."""
    data = recipe.text
    facts = [
        prepared.identity,
        prepared.weights,
        recipe.run.seed,
        (data.seq, data.packing, data.document_mask, data.shuffle),
    ]
    return hashlib.blake2b(msgspec.json.encode(facts), digest_size=16).hexdigest()


def validation_batches(prepared: PreparedData, recipe: Recipe, ranks: Ranks) -> Iterator[Batch]:
    """This rank's share of the validation data, once through, on its device.

    Every rank is given the same number of batches, all of the same shape: where the data ends
    early, sequences without targets fill them up.
    """
    if prepared.validation is None:
        return
    held = Sequences.of(prepared.validation, recipe.text, prepared.end_of_document)
    micro_batch, place = recipe.layout.micro_batch, _Place.of(ranks)
    for start in range(0, len(held), micro_batch * place.size):
        first = start + place.index * micro_batch
        numbers = np.minimum(np.arange(first, first + micro_batch), len(held) - 1)
        batch = _batch(torch.from_numpy(held.windows(numbers).rows()), recipe.text)
        batch.labels[max(0, len(held) - first) :] = IGNORED
        yield batch.to(ranks.device)


def to_device(steps: Iterator[Tensor], device: torch.device) -> Iterator[Tensor]:
    """The same steps on the device, each copied while the one before computes.

    On CUDA: from pinned memory, on a stream of its own; the step waits for the copy on the device,
    not on the host. Elsewhere batches pass through: they are where they are needed.
    """
    if device.type != "cuda":
        return steps
    return _on_stream(steps, device)


def _on_stream(steps: Iterator[Tensor], device: torch.device) -> Iterator[Tensor]:
    stream = torch.cuda.Stream(device)

    def copy() -> Tensor:
        rows = next(steps).pin_memory()
        with torch.cuda.stream(stream):
            return rows.to(device, non_blocking=True)

    ahead = copy()
    while True:
        current = torch.cuda.current_stream(device)
        current.wait_stream(stream)
        # The allocator may hand this memory out again only when the step has used it.
        ahead.record_stream(current)
        ready, ahead = ahead, copy()
        yield ready
