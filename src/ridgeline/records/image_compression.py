"""What a compressed image classifier costs and gains, row by row, each against the row above.

Beside `compression.py`, whose rows speak of text: here quality is how many answers are those of
the model as given, top-1 accuracy where the images have labels, or the mAP of a detector, and speed
the time of a forward pass.
"""

from __future__ import annotations

import msgspec

from ridgeline.records.compression import Divergence, Speedup
from ridgeline.records.measurement import Environment
from ridgeline.records.tagged import TaggedRecord


class ImageProtocol(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which images a model was judged on."""

    images: str
    """The file, or which part of it."""
    judged: int
    """Images that the models were judged on."""
    calibrated: int
    """Other images, which chose what goes or how far numbers reach; 0 where none did."""
    shape: tuple[int, ...]
    """Channels, height and width of one image, or the shape of a model's first input."""
    labelled: bool = True
    """Whether the images say what they show; else agreement is judged alone."""
    preprocess: str = ""
    """What made the pixels into what the model takes; empty: they came so."""


class ImageQuality(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How well a model knows the images."""

    accuracy: float
    """Accuracy of the most probable class (top 1)."""
    loss: float
    """Mean of −ln p of the right class, nats per image."""


class Share(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A share of things that were counted, with Wilson's interval at 95 %."""

    count: int
    of: int
    ci_low: float
    ci_high: float

    @property
    def share(self) -> float:
        """The share that was counted."""
        return self.count / self.of


class ChangedAnswers(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A paired test of the same images before and after: McNemar's, exact."""

    lost: int
    """Images that only the model as given has right."""
    won: int
    """Images that only the compressed model has right."""
    p_value: float
    """Probability of a difference this large where both are right equally often."""


class ImageAnswers(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a model's answers differ from those of the model as given, on the same images."""

    agreement: Share | None
    """Images, pixels or detections with the same answer; None where nothing is chosen."""
    sqnr_db: float | None
    """Signal to quantisation noise of all outputs, 10 log₁₀ (Σ x² / Σ (x − y)²); None: no noise."""
    changed: ChangedAnswers | None = None
    """The paired test; None without labels."""


class OutputLikeness(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How one output of a model differs from that of the model as given."""

    name: str
    """Its path in what the model returns, such as `pred_boxes` or `aux.0.logits`."""
    shape: tuple[int, ...]
    """The shape for one image."""
    sqnr_db: float | None
    """10 log₁₀ (Σ x² / Σ (x − y)²); None where nothing differs, or where no number is finite."""
    relative_error: float | None
    """√(Σ (x − y)² / Σ x²); None where it is not finite."""
    agreement: Share | None = None
    """Pixels of a map with the same class, or equal whole numbers; None for other outputs."""


class Bounded(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A quantile of times, and the order statistics that enclose it with 95 %."""

    seconds: float
    ci_low: float | None
    """None where the calls are too few to bound it."""
    ci_high: float | None


class Calls(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Calls of one model in a process of its own, in turns with the others."""

    runtime: str
    """The program and what it computes in."""
    batch: int
    calls: int
    first_seconds: float
    """The first call, which belongs to none of the quantiles."""
    p50: Bounded
    p99: Bounded
    threads: int


class PlannedLayer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What quantisation did to one layer, and why."""

    layer: str
    kind: str
    macs: int
    """Multiply-accumulates for one image."""
    weight_bits: int | None
    activation_bits: int | None
    """The bits of its inputs; None: it computes in floating point."""
    why: str
    sqnr_db: float | None = None
    """The SQNR of the model's outputs when this layer alone is rounded; None: not measured."""


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
    quality: ImageQuality | None = None
    """None without labels, and of detectors."""
    mean_average_precision: float | None = None
    """mAP at IoU 0.50 to 0.95 of a detector whose images have boxes."""
    divergence: Divergence | None = None
    """From the model as given, by image; None in the first row, and of detectors."""
    outputs: tuple[OutputLikeness, ...] = ()
    """Each output against the model as given; empty in the first row, and of classifiers."""
    metric: float | None = None
    """The user's own measure, `--metric`; higher is better."""
    answers: ImageAnswers | None = None
    """Against the model as given; None in the first row."""
    computed_with: str = ""
    """The program whose outputs were judged."""
    latency: Latency | None = None
    """One forward pass at batch 1, by rounds; None with `--no-speed`."""
    calls: tuple[Calls, ...] = ()
    """In the runtime that computes it, at each batch; empty with `--no-speed`."""
    speedup: Speedup | None = None
    """Over the row above, at batch 1."""
    seconds: float = 0.0
    """The time that compressing took."""
    left_whole: tuple[str, ...] = ()
    """Operations whose channels all stayed, and why."""
    layers: tuple[PlannedLayer, ...] = ()
    """What was quantised, in the order in which it runs."""
    remark: str = ""
    """What a reader must know of this row."""


class ImageLedger(TaggedRecord, frozen=True, kw_only=True, tag="image-compression"):
    """Everything that `ridgeline compress` did to one vision model."""

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
    report: str | None = None
    environment: Environment


class ImageEvaluation(TaggedRecord, frozen=True, kw_only=True, tag="image-evaluation"):
    """The answer of `ridgeline evaluate MODEL --images`."""

    model: str
    against: str | None
    """The model that its answers are compared with."""
    protocol: ImageProtocol
    row: ImageRow
    against_row: ImageRow | None = None
    environment: Environment
