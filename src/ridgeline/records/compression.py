"""What a compressed model costs and gains: quality by a stated protocol, size, speed, row by row.

The ledger of `ridgeline compress`: every row was measured against the row above it, on the same
text and, for speed, in turns with it. A perplexity without context, stride, BOS, tokens and unit
compares with nothing, so a `Protocol` stands beside every one.
"""

from __future__ import annotations

import msgspec

from ridgeline.records.measurement import Environment
from ridgeline.records.tagged import TaggedRecord


class Protocol(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a text was put through a model."""

    text: str
    """The file, or which part of it."""
    context: int
    """Tokens of a window."""
    stride: int
    """Tokens from the start of one window to that of the next; what is new in it is scored."""
    bos: bool
    """Whether the tokenizer put a begin-of-sequence token before the text (once, at the start)."""
    tokens: int
    """Tokens of the text, begin-of-sequence included."""
    scored: int
    """Tokens that were predicted: all but those that begin a window and were in none before."""
    words: int
    """Words of the text, between white space."""
    bytes: int
    """Bytes of the text in UTF-8."""


class Quality(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How well a model predicts a text."""

    loss: float
    """Mean of −ln p, nats per scored token."""
    perplexity: float
    """The exponential of the loss per token."""
    word_perplexity: float
    """exp(loss · tokens / words): comparable between tokenizers."""
    bits_per_byte: float
    """loss · tokens / bytes / ln 2: comparable between tokenizers."""
    accuracy: float
    """Scored tokens that were the most probable one."""


class Divergence(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How far a model's predictions are from those of a reference, by scored token or image."""

    kl_mean: float
    """KL(reference ‖ model), nats for each."""
    kl_p99: float
    agreement: float
    """Share of them of which both think the same answer most probable."""


class Zeros(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How much of a model is zero. What was pruned away is no zero: it is missing."""

    parameters: int
    """All that are stored, embeddings and norms too; tied ones once."""
    zeros: int
    """How many of them are zero; of a weight in few bits, levels that stand for zero."""
    matrix_weights: int
    """Weights of the blocks' matrices, which prunings may touch."""
    matrix_zeros: int
    matrices: int
    two_of_four: int
    """Matrices of which no four neighbours along the depth have more than two that are not zero."""

    @property
    def share_of_matrices(self) -> float:
        """Zeros among the weights that prunings may touch."""
        return self.matrix_zeros / self.matrix_weights

    @property
    def share_of_all(self) -> float:
        """Zeros among all parameters."""
        return self.zeros / self.parameters


class ChannelOutliers(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Input channels of one layer that are far larger than its others."""

    layer: str
    channels: tuple[int, ...]
    """The channels, the largest first."""
    ratios: tuple[float, ...]
    """Largest magnitude of each over that of the layer's median channel."""
    levels_left: float
    """Steps of int8 between 0 and the median channel's largest value, with a scale that all
    channels share (127 where all are alike)."""


class Decoding(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How `ridgeline serve`'s engine decoded a model, in turns with others."""

    tokens_per_second: float
    """From the median step."""
    step_seconds: tuple[float, ...]
    """Median of each round; round i of every model ran side by side."""
    held_bytes: int
    """Weights in memory, as the engine holds them."""
    read_bytes: int
    """Weights, keys and values that a step reads."""
    machine_bytes_per_second: float
    """Read from memory in the same rounds; median."""
    dtype: str
    """The dtype of what is not quantised, and of what is computed."""
    device: str
    threads: int
    batch: int
    context: int


class KeptTokensSeen(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What each token sees of those before it, where it does not see all."""

    recent: int
    """The last ones, itself among them."""
    first: int
    """The ones at the beginning of a window of text."""


class Evaluation(TaggedRecord, frozen=True, kw_only=True, tag="evaluation"):
    """The answer of `ridgeline evaluate`."""

    model: str
    reference: str | None = None
    computed_with: str
    """The program, number format and device behind the quality."""
    protocol: Protocol
    seen: KeptTokensSeen | None = None
    """What the model saw under `--kv-recent`, beside a reference that saw all."""
    quality: Quality
    reference_quality: Quality | None = None
    divergence: Divergence | None = None
    disk_bytes: int
    """Size of the files that hold weights."""
    reference_disk_bytes: int | None = None
    zeros: Zeros | None = None
    reference_zeros: Zeros | None = None
    outliers: tuple[ChannelOutliers, ...] = ()
    """Layers that have some on this text, the worst first."""
    decoding: Decoding | None = None
    reference_decoding: Decoding | None = None
    speedup: Speedup | None = None
    """Time of the reference over time of the model."""
    no_decoding: str = ""
    """Why decoding was not measured."""
    environment: Environment


class Speedup(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Time before over time after: above 1 is faster. Bounds at 95 %, None where there are none."""

    ratio: float
    ci_low: float | None
    ci_high: float | None
    rounds: int

    @property
    def faster(self) -> bool:
        """Is it faster beyond doubt?"""
        return self.ci_low is not None and self.ci_low > 1.0


class StageTraining(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The training behind a row that was trained, not compressed."""

    steps: int
    tokens: int
    """Target tokens that it was trained on."""
    seconds: float
    """Wall seconds over all its starts."""
    final_loss: float | None
    """Mean loss of the last logged steps: what was minimised, a teacher's part included."""
    validation_loss: float | None


class CompressionRow(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A model as it was given, or as the row above with one more scheme applied."""

    scheme: str
    """`as given` in the first row."""
    disk_bytes: int
    quality: Quality | None = None
    """None where nothing was judged."""
    divergence: Divergence | None = None
    """From the model as given; None in the first row."""
    zeros: Zeros | None = None
    outliers: tuple[ChannelOutliers, ...] = ()
    """Layers whose inputs have some on the judged text, the worst first."""
    decoding: Decoding | None = None
    speedup: Speedup | None = None
    """Over the row above."""
    seconds: float = 0.0
    """The time that compressing or training took."""
    training: StageTraining | None = None
    """In a chain, the run behind a row that was trained."""
    remark: str = ""
    """Why it is not faster than the row above, or why that was not measured."""
    notices: tuple[str, ...] = ()
    """What the methods had to do that was not asked for."""
    calibrated_in: str = ""
    """The arithmetic in which calibration went through the blocks; empty: none did, or an earlier
    run had made the row."""


class LayerLoss(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one layer costs when it alone is compressed."""

    layer: str
    scheme: str
    kl: float
    """Mean KL from the model as given, nats per token."""


class LayerSpread(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the weights of one matrix are spread."""

    layer: str
    rms: float
    """The root mean square of the weights."""
    largest: float
    """The largest magnitude among them."""
    shares: tuple[float, ...]
    """The share of the weights in each of 41 bins a quarter of `rms` wide, the middle one around 0;
    the outermost hold all that lies beyond."""


class Chosen(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One layer of a searched model."""

    layer: str
    scheme: str
    """The scheme's name; `as given` where the layer was left alone."""
    kl: float
    """The divergence as in `LayerLoss`; 0 where the layer was left alone."""
    cost: float
    """Bytes on disk, or seconds of one decode step."""


class Attempt(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A combination that a search measured."""

    predicted_kl: float
    """Sum of what its layers cost alone."""
    kl: float
    loss: float
    cost: float
    """Sum over the layers: bytes on disk, or seconds of one decode step."""
    allowed: bool
    """Whether it kept what was asked for."""


class Search(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How schemes were chosen layer by layer."""

    target: str
    aim: str
    """What was searched for, `size` or `latency`."""
    candidates: tuple[str, ...]
    sensitivities: tuple[LayerLoss, ...]
    attempts: tuple[Attempt, ...]
    chosen: tuple[Chosen, ...]


class CompressionLedger(TaggedRecord, frozen=True, kw_only=True, tag="compression"):
    """Everything that `ridgeline compress` did to one model."""

    model: str
    protocol: Protocol | None
    """None where nothing was judged."""
    rows: tuple[CompressionRow, ...]
    allowed: str | None
    """`--max-loss` or `--target`, as given."""
    refused: str = ""
    """Why nothing was saved; empty: it was."""
    sensitive: tuple[LayerLoss, ...] = ()
    """Where it was refused: the layers that cost most, worst first."""
    saved: str | None = None
    """The directory of the saved model."""
    exports: dict[str, str] = {}
    """The file of each exported format."""
    search: Search | None = None
    spreads_before: tuple[LayerSpread, ...] = ()
    """The weights of the model as it was given, matrix by matrix; where something was saved."""
    spreads: tuple[LayerSpread, ...] = ()
    """The weights of the saved model, likewise."""
    report: str | None = None
    environment: Environment
