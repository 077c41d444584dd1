"""Schemes applied in order to a vision model, each a row that is measured against the others."""

from __future__ import annotations

import shutil
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec
import torch
from msgspec.structs import replace
from torch import Tensor, nn
from torch.nn import functional

from ridgeline.checkpoints.files import disk_bytes
from ridgeline.compress.apply import LEDGER
from ridgeline.compress.evaluate.judge import AS_GIVEN, OnProgress
from ridgeline.compress.evaluate.loaded import device_of
from ridgeline.compress.images.answers import answers
from ridgeline.compress.images.detection import Detection, detection_of
from ridgeline.compress.images.latency import prune_for_latency, refusal_by_calls
from ridgeline.compress.images.limits import ImageLimit, refusal
from ridgeline.compress.images.material import (
    CALIBRATED,
    ImageMaterial,
    Images,
    check_labels,
    divided,
    open_sources,
    preprocessing,
)
from ridgeline.compress.images.measure import compare_over, divergence, logits_over, quality
from ridgeline.compress.images.models import VisionModel, name_arguments, open_model
from ridgeline.compress.images.outputs import (
    OutputMetric,
    answered,
    as_called,
    input_names,
    is_classifier,
    largest_batch,
    output_names,
    read_metric,
    share_of_choices,
    tensors_of,
)
from ridgeline.compress.images.plans import finite_or_none, mixture, planned
from ridgeline.compress.images.quantised import save_quantised
from ridgeline.compress.images.saved import save, save_program
from ridgeline.compress.images.schemes import check_schemes
from ridgeline.compress.images.timed import timed
from ridgeline.compress.pruning.channels.choose import flops
from ridgeline.compress.pruning.channels.prune import Smaller, prune_channels
from ridgeline.compress.vision.batches import inputs_of, moved, part_of
from ridgeline.compress.vision.graph import why_alone
from ridgeline.compress.vision.mixed import mixed
from ridgeline.compress.vision.quantise import quantise
from ridgeline.errors import InputError
from ridgeline.hardware.environment import environment
from ridgeline.measure.device_name import device_name
from ridgeline.records.image_compression import (
    ImageAnswers,
    ImageLedger,
    ImageProtocol,
    ImageRow,
    PlannedLayer,
)
from ridgeline.records.scheme import Scheme
from ridgeline.records.store import write_record
from ridgeline.records.work_folder import empty, held

GRADIENT_BATCH = 32
EXAMPLES = 2


@dataclass(slots=True)
class AppliedScheme:
    """The model after one scheme, as it was read back from where it was saved."""

    model: VisionModel
    row: ImageRow
    folder: Path | None = None
    """The new directory; None: as given."""


def compress_images(
    material: ImageMaterial,
    schemes: Sequence[Scheme],
    *,
    max_loss: ImageLimit | None = None,
    on_progress: OnProgress = lambda _: None,
) -> ImageLedger:
    """Apply schemes in order, measure each row, and save the last unless it lost too much.

    Args:
        material: Model, images, and where to.
        schemes: Prunings of channels, then at most one quantisation.
        max_loss: Above it nothing is saved, and the ledger says why.
        on_progress: Told what is under way.

    Raises:
        InputError: Something that was given cannot be used.
    """
    check_schemes(material, schemes)
    if material.boxes is None and max_loss is not None and max_loss.metric == "map":
        raise InputError(f"--max-loss {max_loss.text}: give --boxes FILE, or limit agreement")
    sources = open_sources(material)
    on_progress(f"loading {material.model}")
    device = device_of(material.device)
    model = open_model("MODEL", material.model, material.checkpoint, str(device))
    metric = None if material.metric is None else read_metric(material.metric)
    calibrating, judged, said = divided(material, sources, model)
    name_arguments(model, judged)
    most = largest_batch(model.module, judged)
    judged = judged.for_batches_of(most)
    calibrating = None if calibrating is None else calibrating.for_batches_of(most)
    if judged.labels is None and max_loss is not None and max_loss.metric == "top1":
        raise InputError(
            f"--max-loss {max_loss.text}: {judged.name} has no labels; limit agreement or kl"
        )
    with held(material.work, material.out):
        empty(material.work)
        try:
            run = _Run(material, calibrating, judged, said, on_progress, metric)
            return run.ledger(model, schemes, max_loss)
        finally:
            shutil.rmtree(material.work, ignore_errors=True)


class _Run:
    """One compression with its images, its steps, its ledger."""

    def __init__(
        self,
        material: ImageMaterial,
        calibrating: Images | None,
        judged: Images,
        said: str,
        on_progress: OnProgress,
        metric: OutputMetric | None,
    ) -> None:
        self.metric = metric
        self.material, self.judged, self.said = material, judged, said
        self.chosen = None if calibrating is None else calibrating.evenly(CALIBRATED)
        self.on_progress = on_progress
        self.used = 0
        """Images that any scheme looked at."""
        self.refused = ""

    def ledger(
        self, model: VisionModel, schemes: Sequence[Scheme], max_loss: ImageLimit | None
    ) -> ImageLedger:
        self.example = self.judged.head(EXAMPLES)
        self.on_progress("judging the model as given")
        self.model = model
        self.given = None
        first = answered(model.module, self.example)
        self.structure = getattr(model.module, "structure", None)
        if is_classifier(first):
            self.given = logits_over(model.module, self.judged)
            for one in (self.chosen, self.judged):
                if one is not None:
                    check_labels(one, self.given.shape[1])
        self.outputs = output_names(self.structure, len(tensors_of(first)))
        boxes = self.material.boxes
        self.detection: Detection | None = None
        if boxes is not None:
            self.detection = detection_of(boxes, self.material, model, self.judged, self.outputs)
        steps = [AppliedScheme(model, self._row(AS_GIVEN, model, compared=False))]
        for place, scheme in enumerate(schemes, start=1):
            folder = self.material.work / f"{place}"
            folder.parent.mkdir(parents=True, exist_ok=True)
            steps.append(self._applied(steps[-1], scheme, folder))
            if self.refused:
                break
        rows = [step.row for step in steps]
        if self.material.speed:
            models = [(step.model, step.folder) for step in steps]
            rows = timed(rows, models, self.judged, self.material.work / "timing", self.on_progress)
            if self.material.latency and len(rows) == len(schemes) + 1:
                self.refused = refusal_by_calls(rows, schemes, self.material.faster)
        refused = self.refused or refusal(rows, max_loss)
        ledger = ImageLedger(
            model=str(self.material.model),
            protocol=ImageProtocol(
                images=self.judged.name,
                judged=len(self.judged),
                calibrated=self.used,
                shape=tuple(inputs_of(self.example)[0].shape[1:]),
                labelled=self.given is None or self.judged.labels is not None,
                preprocess=self.said,
            ),
            rows=tuple(rows),
            allowed=None if max_loss is None else max_loss.text,
            refused=refused,
            saved=None if refused else str(self.material.out),
            environment=environment(device=device_name(device_of(self.material.device))),
        )
        if not refused:
            last = steps[-1].folder
            assert last is not None
            write_record(last / LEDGER, ledger)
            last.rename(self.material.out)
        return ledger

    def _applied(self, above: AppliedScheme, scheme: Scheme, folder: Path) -> AppliedScheme:
        started, most = time.monotonic(), self.judged.most
        if scheme.images:
            model, layers, notes = self._quantised(above.model, scheme, folder)
            left: tuple[str, ...] = ()
        else:
            smaller = self._pruned(above.model, scheme)
            model, left = self._saved_smaller(above.model, smaller, folder), smaller.left_whole
            layers, notes = (), []
        seconds = time.monotonic() - started
        if self._take_batches_of(model.module) or self.judged.most != most:
            why = why_alone(above.model.module, part_of(self.example, slice(1)))
            notes.append(f"what is saved takes one image at a time: {why}")
        self.on_progress(f"judging {scheme.name}")
        row = self._row(scheme.name, model, compared=True)
        if scheme.images:
            counted = above.row
            row = replace(row, parameters=counted.parameters, flops=counted.flops)
        row = replace(row, seconds=seconds, left_whole=left, layers=layers, remark="; ".join(notes))
        return AppliedScheme(model, row, folder)

    def _take_batches_of(self, module: nn.Module) -> bool:
        """From here on one image at a time, if a module takes no more; whether that is new."""
        if self.judged.most is not None or largest_batch(module, self.judged) is None:
            return False
        self.judged = self.judged.for_batches_of(1)
        self.chosen = None if self.chosen is None else self.chosen.for_batches_of(1)
        self.example = self.judged.head(EXAMPLES)
        return True

    # -- quantisation ------------------------------------------------------------------------------

    def _quantised(
        self, model: VisionModel, scheme: Scheme, folder: Path
    ) -> tuple[VisionModel, tuple[PlannedLayer, ...], list[str]]:
        assert self.chosen is not None
        self.on_progress(f"{scheme.name}: reading {len(self.chosen)} images")
        batches = list(self.chosen.batches())
        self.used = max(self.used, len(self.chosen))
        alone: dict[str, float | None] = {}
        notes: list[str] = []

        def on_progress(said: str) -> None:
            self.on_progress(f"{scheme.name}: {said}")

        if self.material.mixed:
            with _without_torchs_advice():
                ranked = mixed(model.module, batches, scheme, on_progress=on_progress)
            found = ranked.quantised
            alone = {one.layer: finite_or_none(one.sqnr_db) for one in ranked.ranking}
            notes = [mixture(ranked)]
        else:
            with _without_torchs_advice():
                found = quantise(model.module, batches, scheme, on_progress=on_progress)
        self._take_batches_of(found.module)
        self.on_progress(f"{scheme.name}: writing")
        with _without_torchs_advice():
            names = (input_names(model.module, self.example), self.outputs)
            missing = save_quantised(found, self.example, folder, names)
        self._save_preprocess(model, folder)
        if missing:
            saved = VisionModel(
                name=scheme.name,
                module=found.module,
                disk_bytes=disk_bytes(folder),
                computed_with="PyTorch, int8 simulated",
            )
        else:
            saved = open_model("--out", folder)
            object.__setattr__(saved, "computed_with", saved.computed_with.partition(",")[0])
        return saved, planned(found, alone), [*notes, *missing]

    def _save_preprocess(self, model: VisionModel, folder: Path) -> None:
        _, said, _ = preprocessing(model, self.material.pixels, self.judged.source)
        if said is not None:
            text = msgspec.json.format(msgspec.json.encode(said))
            (folder / "preprocess.json").write_bytes(text + b"\n")

    # -- channels ----------------------------------------------------------------------------------

    def _pruned(self, model: VisionModel, scheme: Scheme) -> Smaller:
        assert scheme.pruning is not None
        self.on_progress(f"{scheme.name}: choosing channels")
        whole = model.classifier if model.classifier is not None else model.module
        batches = self._gradients(model) if scheme.needs_calibration else []
        if self.material.latency:
            smaller, self.refused = prune_for_latency(
                whole,
                inputs_of(self.example),
                scheme.pruning,
                faster=self.material.faster,
                batches=batches,
                loss_of=_loss,
                on_progress=self.on_progress,
            )
            return smaller
        return prune_channels(
            whole, inputs_of(self.example), scheme.pruning, batches=batches, loss_of=_loss
        )

    def _gradients(self, model: VisionModel) -> list[tuple[Tensor, Tensor]]:
        """Batches of calibration with labels."""
        assert self.chosen is not None
        if self.chosen.labels is None:
            raise InputError(f"{self.chosen.name}: has no labels, which taylor needs")
        if self.given is None:
            raise InputError(
                f"{self.material.model}: gives no logits, whose loss taylor needs; take a scheme by"
                " magnitude, such as 50%-channels"
            )
        self.used = max(self.used, len(self.chosen))
        place = next(model.module.parameters())
        pixels = self.chosen.batches(GRADIENT_BATCH)
        labels = self.chosen.labels.split(GRADIENT_BATCH)
        return [
            (inputs_of(one)[0].to(place.device, place.dtype), label.to(place.device))
            for one, label in zip(pixels, labels, strict=True)
        ]

    def _saved_smaller(self, model: VisionModel, smaller: Smaller, folder: Path) -> VisionModel:
        if model.classifier is not None:
            assert model.folder is not None
            save(smaller, model.folder, folder)
        else:
            save_program(smaller.model, self.example, folder)
            self._save_preprocess(model, folder)
        found = open_model("compressed model", folder, device=str(device_of(self.material.device)))
        object.__setattr__(found, "preprocess", model.preprocess)
        return found

    # -- rows --------------------------------------------------------------------------------------

    def _row(self, scheme: str, model: VisionModel, *, compared: bool) -> ImageRow:
        """A model as it lies in its directory."""
        torch_module = any(True for _ in model.module.parameters())
        row = ImageRow(
            scheme=scheme,
            disk_bytes=model.disk_bytes,
            parameters=sum(one.numel() for one in model.module.parameters()),
            flops=self._flops(model.module) if torch_module else 0,
            computed_with=model.computed_with,
        )
        if self.given is not None:
            row = self._classified(row, model, compared=compared)
        elif compared:
            row = self._compared(row, model)
        if self.detection is not None:
            found = self.detection.mean_average_precision(model.module, self.judged)
            row = replace(row, mean_average_precision=found)
        if self.metric is None:
            return row
        return replace(row, metric=self.metric(as_called(model.module, self.structure)))

    def _flops(self, module: nn.Module) -> int:
        floats = (one for one in module.parameters() if one.is_floating_point())
        example = part_of(self.example, slice(1))
        return flops(module, moved(example, next(floats, torch.empty(0))))

    def _classified(self, row: ImageRow, model: VisionModel, *, compared: bool) -> ImageRow:
        assert self.given is not None
        labels = self.judged.labels
        logits = logits_over(model.module, self.judged) if compared else self.given
        row = replace(row, quality=None if labels is None else quality(logits, labels))
        if not compared:
            return row
        return replace(
            row,
            divergence=divergence(self.given, logits),
            answers=answers(self.given, logits, labels),
        )

    def _compared(self, row: ImageRow, model: VisionModel) -> ImageRow:
        """Output by output beside the model as given, which answers again."""
        found = compare_over(self.model.module, model.module, self.judged)
        outputs = found.found(self.outputs)
        agreement = share_of_choices(outputs)
        return replace(
            row,
            outputs=outputs,
            answers=ImageAnswers(agreement=agreement, sqnr_db=found.sqnr_db),
        )


@contextmanager
def _without_torchs_advice() -> Iterator[None]:
    """Copies of torch's own graphs warn of a class that torch itself has put there."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r"`isinstance\(treespec, LeafSpec\)`")
        yield


def _loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    pixels, labels = batch
    output = model(pixels)
    return functional.cross_entropy(getattr(output, "logits", output), labels)
