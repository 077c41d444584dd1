"""Measures compressed models beside the one they were made from, each as it was saved."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from ridgeline.checkpoints.files import disk_bytes
from ridgeline.compress.evaluate.loaded import Loaded, load
from ridgeline.compress.evaluate.quality import check_finite, measure
from ridgeline.compress.evaluate.sensitive import LayerProbe, common_layers, layer_losses
from ridgeline.compress.evaluate.text import TextWindows
from ridgeline.compress.pruning.report import counted
from ridgeline.compress.watching.outliers import outliers, watched_channels
from ridgeline.errors import InputError
from ridgeline.measure.statistics.intervals import ratio_interval
from ridgeline.records.compression import (
    CompressionRow,
    Decoding,
    Divergence,
    LayerLoss,
    Quality,
    Speedup,
)

OnProgress = Callable[[str], None]
Bench = Callable[[Sequence[Path], OnProgress], list[Decoding | str]]
"""Decodes with several models in turns; a text is why a model was not measured."""
WORST = 3
"""Layers that a refusal names."""
OVERHEAD_SHARE = 0.5
"""Where reading at memory's speed takes less of a step, smaller weights cannot matter much."""
AS_GIVEN = "as given"


class QualityJudge:
    """Holds the model as given and the text."""

    def __init__(
        self, model: Path, judged: TextWindows, device: str, on_progress: OnProgress
    ) -> None:
        on_progress(f"loading {model} to judge")
        self.given: Loaded = load("MODEL", model, device)
        self.judged = judged
        self._device = device
        self._on_progress = on_progress
        with watched_channels(self.given.model) as largest:
            found = measure(
                self.given.model, judged.tokens, judged.windows, on_progress=self._within(AS_GIVEN)
            )
        self.quality: Quality = found.scores.quality(judged.protocol)
        check_finite(f"MODEL {model}", self.quality)
        self._outliers = outliers(largest)

    def baseline(self) -> CompressionRow:
        """The row of the model as given."""
        directory = self.given.directory
        return CompressionRow(
            scheme=AS_GIVEN,
            disk_bytes=disk_bytes(directory),
            quality=self.quality,
            zeros=counted(directory),
            outliers=self._outliers,
        )

    def row(self, scheme: str, directory: Path) -> CompressionRow:
        """What was saved, read by transformers and put through the text beside the original.

        Raises:
            InputError: transformers does not load it.
        """
        loaded = self.load(directory)
        with watched_channels(loaded.model) as largest:
            quality, divergence = self.compare(loaded, scheme)
        return CompressionRow(
            scheme=scheme,
            disk_bytes=disk_bytes(directory),
            quality=quality,
            divergence=divergence,
            zeros=counted(directory),
            outliers=outliers(largest),
        )

    def load(self, directory: Path) -> Loaded:
        """A compressed model, ready."""
        loaded = load("compressed model", directory, self._device)
        if loaded.vocab != self.given.vocab:
            raise InputError(f"{directory}: its vocabulary is not that of {self.given.directory}")
        return loaded

    def fresh(self) -> Loaded:
        """The model as given once more, to be changed."""
        return load("MODEL", self.given.directory, self._device)

    def compare(self, loaded: Loaded, name: str) -> tuple[Quality, Divergence]:
        """A model's quality, and its distance from the one as given."""
        found = measure(
            loaded.model,
            self.judged.tokens,
            self.judged.windows,
            self.given.model,
            self._within(name),
        )
        return found.scores.quality(self.judged.protocol), found.distances.divergence()

    def watched(self) -> LayerProbe:
        """The model as given, to swap single layers in."""
        return LayerProbe(self.given.model, self.judged.tokens, self.judged.windows)

    def most_sensitive(self, directory: Path, scheme: str) -> tuple[LayerLoss, ...]:
        """The layers that cost most alone, worst first; none where layers were pruned."""
        loaded = self.load(directory)
        names = common_layers(self.given.model, loaded.model)
        if not names:
            return ()
        self._on_progress(f"which of {len(names)} layers cost most")
        found = layer_losses(self.watched(), loaded.model, [[name] for name in names], scheme)
        return tuple(sorted(found, key=lambda one: -one.kl)[:WORST])

    def _within(self, name: str) -> OnProgress:
        return lambda text: self._on_progress(f"perplexity, {name}: {text}")


def with_speed(
    rows: Sequence[CompressionRow], found: Sequence[Decoding | str]
) -> list[CompressionRow]:
    """The rows with what decoding in turns found, each against the row above."""
    from msgspec.structs import replace

    results = []
    for place, (row, own) in enumerate(zip(rows, found, strict=True)):
        if isinstance(own, str):
            results.append(replace(row, remark=f"speed not measured: {own}"))
            continue
        above = found[place - 1] if place else None
        if not isinstance(above, Decoding):
            remark = "" if place == 0 else "not compared: the row above was not measured"
            results.append(replace(row, decoding=own, remark=remark))
            continue
        gain = speedup(above, own)
        results.append(
            replace(row, decoding=own, speedup=gain, remark=_why_not_faster(above, own, gain))
        )
    return results


def speedup(before: Decoding, after: Decoding) -> Speedup:
    """The speedup that interleaved rounds show."""
    return of_rounds(before.step_seconds, after.step_seconds)


def of_rounds(before_seconds: Sequence[float], after_seconds: Sequence[float]) -> Speedup:
    """Round i of both ran side by side."""
    found = ratio_interval(before_seconds, after_seconds)
    bounded = found.low > 0
    return Speedup(
        ratio=found.ratio,
        ci_low=found.low if bounded else None,
        ci_high=found.high if bounded else None,
        rounds=found.rounds,
    )


def _why_not_faster(before: Decoding, after: Decoding, gain: Speedup) -> str:
    """Nothing where it is."""
    if gain.faster:
        return ""
    step = before.batch / before.tokens_per_second
    reading = before.read_bytes / before.machine_bytes_per_second / step
    if after.read_bytes >= 0.98 * before.read_bytes:
        return "not faster: a step reads as many bytes as before; the engine runs it as dense"
    if reading < OVERHEAD_SHARE:
        return (
            f"not faster: reading weights is {reading:.0%} of a step, so fewer bytes save little;"
            " the model is small for this machine"
        )
    return "not faster beyond doubt: fewer bytes are read, but the kernel does not gain by it"
