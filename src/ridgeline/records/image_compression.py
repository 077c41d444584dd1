"""What a compressed image classifier costs and gains, row by row, each against the row above.

Beside `compression.py`, whose rows speak of text: here quality is top-1 accuracy on images that
were held back, and speed the time of a forward pass.
"""

from __future__ import annotations

import msgspec

from ridgeline.records.compression import Divergence, Speedup
from ridgeline.records.measurement import Environment


class ImageProtocol(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which images a model was judged on."""

    images: str
    """The file, or which part of it."""
    judged: int
    """Images that the models were judged on."""
    calibrated: int
    """Other images, whose gradients chose what goes; 0 where none did."""
    shape: tuple[int, int, int]
    """Channels, height and width of one image."""


class ImageQuality(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How well a model knows the images."""

    accuracy: float
    """Accuracy of the most probable class (top 1)."""
    loss: float
    """Mean of −ln p of the right class, nats per image."""


class Latency(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How long a forward pass took, in turns with other models."""

    seconds: float
    """Median of the rounds."""
    round_seconds: tuple[float, ...]
    """Median of each round; round i of every model ran side by side."""
    batch: int
    """Images of a pass."""
    dtype: str
    device: str
    threads: int


class ImageRow(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A model as it was given, or as the row above with one more scheme applied."""

    scheme: str
    """`as given` in the first row."""
    disk_bytes: int
    parameters: int
    flops: int
    """FLOPs of one image, two per multiplication and addition of convolutions and matmuls."""
    quality: ImageQuality
    divergence: Divergence | None = None
    """From the model as given, by image; None in the first row."""
    latency: Latency | None = None
    """The measured latency; None with `--no-speed`."""
    speedup: Speedup | None = None
    """Over the row above."""
    seconds: float = 0.0
    """The time that compressing took."""
    left_whole: tuple[str, ...] = ()
    """Operations whose channels all stayed, and why."""


class ImageLedger(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    tag_field="record",
    tag="image-compression",
):
    """Everything that `ridgeline compress` did to one image classifier."""

    model: str
    protocol: ImageProtocol
    rows: tuple[ImageRow, ...]
    allowed: str | None
    """The allowed loss, `--max-loss` as given."""
    refused: str = ""
    """Why nothing was saved; empty: it was."""
    saved: str | None = None
    """The directory of the saved model."""
    exports: dict[str, str] = {}
    """The file of each exported format."""
    environment: Environment
