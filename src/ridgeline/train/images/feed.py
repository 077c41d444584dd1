"""A rank's micro-batches of images, step after step, in an order that no world size changes.

Step k of a run with a global batch of B images takes samples [kB, (k+1)B) of the order
(`data/order.py`); each data rank takes its contiguous part of them. The state is one integer, the
samples that were handed out, so a run goes on bit for bit with another number of ranks, another
micro-batch, other workers. Images travel as bytes and are normalised where they are computed with.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor

from ridgeline.errors import InputError
from ridgeline.image_files.decoding import pillow
from ridgeline.records.image_recipe import RecipeImages
from ridgeline.records.recipe import Recipe
from ridgeline.train.batch import IGNORED
from ridgeline.train.data.loader import to_device
from ridgeline.train.data.order import SampleOrder
from ridgeline.train.images.batch import ImageBatch, blended, counted
from ridgeline.train.images.prepared import ImageSet, PreparedImages
from ridgeline.train.images.ring import DecodeRing, Rows
from ridgeline.train.images.views import judged_view, trained_view
from ridgeline.train.ranks import Ranks

_NAMED = 3
"""Unreadable images that a note names; the others it counts."""


@dataclass(slots=True)
class TrainedRows:
    """The rows of this rank's steps: a function of the step and the row."""

    images: ImageSet
    wanted: RecipeImages
    order: SampleOrder
    global_batch: int
    offset: int
    """The place of this rank's first row among the step's samples."""

    def places(self, step: int, count: int) -> NDArray[np.int64]:
        """Which image of the set each of the step's first rows is."""
        start = step * self.global_batch + self.offset
        return self.order.between(start, start + count)[1]

    def decode(self, step: int, row: int) -> NDArray[np.uint8]:
        """What training sees in that row."""
        sample = step * self.global_batch + self.offset + row
        place = int(self.images.places[self.order.between(sample, sample + 1)[1][0]])
        epoch = sample // len(self.images)
        pixels = self.images.source.read(place)
        return trained_view(pixels, self.wanted, self.order.seed, epoch, place)


class ImageFeed:
    """An endless iterator over steps, each a list of this rank's micro-batches on its device."""

    def __init__(self, prepared: PreparedImages, recipe: Recipe, ranks: Ranks) -> None:
        assert recipe.images is not None
        self._prepared, self._ranks = prepared, ranks
        self._wanted, self._seed = recipe.images, recipe.run.seed
        self._layout = recipe.layout
        self._count = recipe.layout.global_batch // ranks.size("data")
        order = SampleOrder(
            sizes=(len(prepared.train),),
            weights=(1.0,),
            seed=recipe.run.seed,
            shuffle=recipe.images.shuffle,
        )
        self._rows = TrainedRows(
            prepared.train,
            recipe.images,
            order,
            recipe.layout.global_batch,
            ranks.index("data") * self._count,
        )
        self._identity = _identity(prepared, recipe)
        self._normal = Normaliser(recipe, ranks.device)
        self._taken = 0
        self._ring: DecodeRing | None = None
        self._running: Iterator[Tensor] | None = None
        self._labels: deque[Tensor] = deque()
        self._notes: list[str] = []
        self._unreadable = 0
        self.targets = 0
        """Images of the step last handed out, this rank's, that could be read."""

    def __next__(self) -> list[ImageBatch]:
        if self._running is None:
            self._running = self._start()
        rows, labels = next(self._running), self._labels.popleft()
        size = self._layout.micro_batch
        first = self._taken + self._rows.offset
        self._taken += self._layout.global_batch
        self.targets = counted(labels)
        found = []
        for place, (pixels, part) in enumerate(
            zip(rows.split(size), labels.split(size), strict=True)
        ):
            batch = ImageBatch(
                pixels=self._normal(pixels),
                labels=part.to(self._ranks.device, non_blocking=True),
                count=counted(part),
            )
            found.append(blended(batch, self._wanted, self._seed, first + place * size))
        return found

    def state_dict(self) -> dict[str, Any]:
        """What a later run needs to go on after the last step that was handed out."""
        return {"samples": self._taken, "identity": self._identity}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there.

        Raises:
            InputError: The state is of other images, another order or other views of them.
        """
        if state["identity"] != self._identity:
            raise InputError(
                "the checkpoint was trained on other images: names, labels, seed or a view of"
                " [images] have changed; restore them, or start anew"
            )
        self.close()
        self._taken = int(state["samples"])

    def close(self) -> None:
        """End the workers; a later `next` starts others."""
        self._running = None
        self._labels.clear()
        if self._ring is not None:
            self._ring.close()
            self._ring = None

    def figures(self) -> dict[str, Any]:
        """How fast images are decoded, and how many could not be, since the last line."""
        rate = self._ring.rate if self._ring is not None else None
        workers = max(1, self._wanted.workers)
        mine = [0.0, float(self._unreadable)]
        if rate is not None and rate.seconds:
            mine[0] = rate.images / rate.seconds * workers
            rate.images, rate.seconds = 0, 0.0
        self._unreadable = 0
        total = torch.tensor(mine, dtype=torch.float64)
        if self._ranks.size("data") > 1:
            dist.all_reduce(total, group=self._ranks.group("data"))
        decoded, unreadable = total.tolist()
        return {"decoded_per_second": decoded, "unreadable_images": int(unreadable)}

    def take_notes(self) -> str:
        """Names of images that could not be read, since it was last asked."""
        notes, self._notes = self._notes, []
        more = f" (and {len(notes) - _NAMED} more)" if len(notes) > _NAMED else ""
        return "; ".join(notes[:_NAMED]) + more

    def held_out(self) -> Iterator[ImageBatch]:
        """This rank's share of the held-out images, once through, on its device.

        Every rank is given as many batches of one shape; what is missing at the end is `IGNORED`.
        """
        held = self._prepared.held
        if held is None:
            return
        place, size = self._ranks.index("data"), self._ranks.size("data")
        rows = HeldRows(held, self._wanted, self._layout.micro_batch, place, size)
        ring = self._new_ring(rows.decode, rows.count)
        ring.last = rows.steps
        try:
            for step, found in enumerate(ring):
                labels = self._labelled(rows.labels(step), found)
                yield ImageBatch(
                    pixels=self._normal(torch.from_numpy(found.pixels).to(self._ranks.device)),
                    labels=labels.to(self._ranks.device),
                    count=counted(labels),
                )
        finally:
            ring.close()

    def _start(self) -> Iterator[Tensor]:
        self._ring = self._new_ring(self._rows.decode, self._count)
        self._ring.step = self._taken // self._layout.global_batch
        return to_device(self._read(self._ring), self._ranks.device)

    def _new_ring(self, decode: Any, rows: int) -> DecodeRing:
        pillow().init()  # before there are workers, which would each load its decoders
        wanted = self._wanted
        return DecodeRing(
            decode=decode,
            rows=rows,
            shape=(wanted.size, wanted.size, wanted.channels),
            workers=wanted.workers,
            ahead=wanted.steps_ahead,
        )

    def _read(self, ring: DecodeRing) -> Iterator[Tensor]:
        """Pixels of each step; its labels are kept beside them."""
        for step, found in enumerate(ring, start=ring.step):
            places = self._rows.places(step, self._count)
            labels = torch.from_numpy(self._prepared.train.labels[places])
            self._labels.append(self._labelled(labels, found))
            yield torch.from_numpy(found.pixels)

    def _labelled(self, labels: Tensor, found: Rows) -> Tensor:
        """The labels, `IGNORED` where there is no image; which, is remembered."""
        for row, why in found.unreadable:
            if labels[row] != IGNORED:
                labels[row] = IGNORED
                self._unreadable += 1
                self._notes.append(why)
        return labels


@dataclass(slots=True)
class HeldRows:
    """Held-out images in order, dealt out to ranks in micro-batches."""

    images: ImageSet
    wanted: RecipeImages
    count: int
    """Rows of a micro-batch."""
    index: int
    """This rank among `size`."""
    size: int

    @property
    def steps(self) -> int:
        """Micro-batches of each rank."""
        return -(-len(self.images) // (self.count * self.size))

    def _number(self, step: int, row: int) -> int:
        return (step * self.size + self.index) * self.count + row

    def decode(self, step: int, row: int) -> NDArray[np.uint8]:
        """What validation sees in that row; black past the end."""
        number = self._number(step, row)
        if number >= len(self.images):
            return np.zeros((), np.uint8)
        pixels = self.images.source.read(int(self.images.places[number]))
        return judged_view(pixels, self.wanted)

    def labels(self, step: int) -> Tensor:
        """The labels of a micro-batch, `IGNORED` past the end."""
        first = self._number(step, 0)
        known = torch.from_numpy(self.images.labels[first : first + self.count])
        return torch.cat([known, known.new_full((self.count - len(known),), IGNORED)])


class Normaliser:
    """Bytes [B, height, width, channels] become floats [B, channels, height, width]."""

    def __init__(self, recipe: Recipe, device: torch.device) -> None:
        assert recipe.images is not None
        mean, deviation = recipe.images.normalisation
        self._scale = torch.tensor([1.0 / (255.0 * one) for one in deviation], device=device)
        shift = [-middle / one for middle, one in zip(mean, deviation, strict=True)]
        self._shift = torch.tensor(shift, device=device)
        self._format = (
            torch.channels_last if recipe.images.channels_last else torch.contiguous_format
        )

    def __call__(self, pixels: Tensor) -> Tensor:
        """Scale and shift each channel."""
        values = torch.addcmul(self._shift, pixels.float(), self._scale)
        return values.permute(0, 3, 1, 2).contiguous(memory_format=self._format)


def _identity(prepared: PreparedImages, recipe: Recipe) -> str:
    """A checksum of all that decides what sample i is."""
    wanted = recipe.images
    assert wanted is not None
    facts = [
        prepared.identity,
        recipe.run.seed,
        (wanted.size, wanted.channels, wanted.crop, wanted.area, wanted.shape, wanted.padding),
        (wanted.flip, wanted.centre_share, wanted.normalisation, wanted.shuffle),
    ]
    return hashlib.blake2b(msgspec.json.encode(facts), digest_size=16).hexdigest()
