"""Requests whose images a vision tower has yet to look at; one image between two steps.

A tower takes as long as some hundred tokens of a prompt, so running answers are never kept waiting
for more than one image. Requests are queued when all their images are known, in their order.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import msgspec

from ridgeline.batching.policies import QueueFull
from ridgeline.serve.messages import Submit
from ridgeline.serve.vision.features import ImageFeatures, PlacedImage, VisionTower

MOST_WAITING_BYTES = 512 * 2**20
"""Pixels of images that nobody has looked at."""
MOST_HELD_BYTES = 2**30
"""Features of open requests."""


@dataclass(slots=True)
class _Unseen:
    """A request that waits, and those of its images that are known."""

    submit: Submit
    arrived: float
    placed: list[PlacedImage] = field(default_factory=list)

    @property
    def bytes(self) -> int:
        return sum(len(one.data) for image in self.submit.images for one in image.arrays)


@dataclass(frozen=True, slots=True)
class SeenRequest:
    """A request whose images are known; its pixels are gone."""

    submit: Submit
    arrived: float
    images: tuple[PlacedImage, ...]


class Looking:
    """The line in front of a tower."""

    def __init__(self, tower: VisionTower) -> None:
        self._features = ImageFeatures(tower)
        self._line: deque[_Unseen] = deque()

    def __len__(self) -> int:
        return len(self._line)

    def __contains__(self, request_id: str) -> bool:
        return any(one.submit.id == request_id for one in self._line)

    def join(self, submit: Submit, arrived: float, held_bytes: int) -> None:
        """Let a request with images wait.

        Raises:
            QueueFull: Images of others fill the room for them.
        """
        new = _Unseen(submit, arrived)
        waiting = sum(one.bytes for one in self._line)
        if self._line and waiting + new.bytes > MOST_WAITING_BYTES:
            raise QueueFull("images of other requests wait already; try again later")
        if held_bytes > MOST_HELD_BYTES:
            raise QueueFull("images of open requests fill the room for them; try again later")
        self._line.append(new)

    def leave(self, request_id: str) -> None:
        """Forget a request; an unknown one is no error."""
        self._line = deque(one for one in self._line if one.submit.id != request_id)

    def look(self) -> SeenRequest | None:
        """Look at one image; a request if all of its images are known now.

        Raises:
            Unseeable: The tower failed at one; its request is out of the line.
        """
        while self._line:
            first = self._line[0]
            images = first.submit.images
            if len(first.placed) == len(images):
                self._line.popleft()
                bare = tuple(msgspec.structs.replace(one, arrays=()) for one in images)
                submit = msgspec.structs.replace(first.submit, images=bare)
                return SeenRequest(submit, first.arrived, tuple(first.placed))
            image = images[len(first.placed)]
            known = image.digest in self._features
            try:
                first.placed.append(self._features.placed(image))
            except Exception as error:  # any code of any family runs here
                self._line.popleft()
                raise Unseeable(first.submit.id, error) from error
            if not known and len(first.placed) < len(images):
                return None
        return None


class Unseeable(Exception):
    """A tower failed at the image of one request."""

    def __init__(self, request_id: str, error: Exception) -> None:
        super().__init__(request_id)
        self.request_id = request_id
        self.error = error
