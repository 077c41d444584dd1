"""Channels pruned by schemes in order, each a row that is measured against the row above it."""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace
from torch import Tensor, nn
from torch.nn import functional

from ridgeline.checkpoints.files import disk_bytes
from ridgeline.compress.apply import LEDGER
from ridgeline.compress.evaluate.allowance import Allowance
from ridgeline.compress.evaluate.evaluate import environment
from ridgeline.compress.evaluate.judge import AS_GIVEN, OnProgress
from ridgeline.compress.evaluate.loaded import device_of
from ridgeline.compress.images.material import CALIBRATED, ImageMaterial, Images, divided
from ridgeline.compress.images.measure import divergence, logits_of, quality, speedup, time_in_turns
from ridgeline.compress.images.saved import load, save
from ridgeline.compress.pruning.channels.choose import flops
from ridgeline.compress.pruning.channels.prune import prune_channels
from ridgeline.errors import InputError
from ridgeline.records.image_compression import ImageLedger, ImageProtocol, ImageRow
from ridgeline.records.scheme import Scheme
from ridgeline.records.store import write_record

GRADIENT_BATCH = 32
EXAMPLES = 2


def compress_images(
    material: ImageMaterial,
    schemes: Sequence[Scheme],
    *,
    max_loss: Allowance | None = None,
    on_progress: OnProgress = lambda _: None,
) -> ImageLedger:
    """Apply schemes in order, measure each row, and save the last unless it lost too much.

    Args:
        material: Model, images, and where to.
        schemes: Prunings of channels.
        max_loss: In KL; above it nothing is saved, and the ledger says why.
        on_progress: Told what is under way.

    Raises:
        InputError: Something that was given cannot be used.
    """
    _check(material, schemes, max_loss)
    calibrating, judged = divided(material.calibration, material.held)
    on_progress(f"loading {material.model}")
    model = load("MODEL", material.model).to(device_of(material.device))
    _check_labels(model, calibrating, judged)
    shutil.rmtree(material.work, ignore_errors=True)
    try:
        return _judged(material, schemes, (calibrating, judged), model, max_loss, on_progress)
    finally:
        shutil.rmtree(material.work, ignore_errors=True)


def _check(material: ImageMaterial, schemes: Sequence[Scheme], max_loss: Allowance | None) -> None:
    if material.out.exists():
        raise InputError(f"--out {material.out}: exists already; give another name or remove it")
    for one in schemes:
        if one.pruning is None or one.pruning.structure != "channels":
            raise InputError(
                f"scheme {one.name!r} is not for image models; give one that prunes channels,"
                " such as 50%-channels or 30%-channels-taylor-global"
            )
        if one.pruning.criterion not in ("magnitude", "taylor"):
            raise InputError(
                f"scheme {one.name!r}: {one.pruning.criterion} ranks single weights, not channels;"
                " choose magnitude or taylor"
            )
        if one.needs_calibration and material.calibration is None:
            raise InputError(f"{one.name} looks at gradients of images: give --calibration FILE")
    if max_loss is not None and max_loss.metric != "kl":
        raise InputError(
            f"--max-loss {max_loss.text}: a classifier has no perplexity; give kl+0.05 (nats an"
            " image)"
        )


def _check_labels(model: Any, *sets: Images | None) -> None:
    classes = int(model.config.num_labels)
    for one in sets:
        if one is not None and not bool(((one.labels >= 0) & (one.labels < classes)).all()):
            raise InputError(
                f"{one.name}: labels {int(one.labels.min())} to {int(one.labels.max())}, but the"
                f" model knows {classes} classes"
            )


def _judged(
    material: ImageMaterial,
    schemes: Sequence[Scheme],
    images: tuple[Images | None, Images],
    model: Any,
    max_loss: Allowance | None,
    on_progress: OnProgress,
) -> ImageLedger:
    calibrating, judged = images
    example = judged.pixel_values[:EXAMPLES].to(model.device)
    rows, models, directory = (
        [_row(AS_GIVEN, model, material.model, judged)],
        [model],
        material.model,
    )
    batches = _batches(calibrating, model) if any(one.needs_calibration for one in schemes) else []
    for place, scheme in enumerate(schemes, start=1):
        on_progress(f"{scheme.name}: choosing channels")
        started = time.monotonic()
        assert scheme.pruning is not None
        smaller = prune_channels(
            models[-1], (example,), scheme.pruning, batches=batches, loss_of=_loss
        )
        directory, source = material.work / f"{place}", directory
        directory.parent.mkdir(parents=True, exist_ok=True)
        save(smaller, source, directory)
        seconds = time.monotonic() - started
        models.append(load("compressed model", directory).to(model.device))
        row = _row(scheme.name, models[-1], directory, judged, beside=model)
        rows.append(replace(row, seconds=seconds, left_whole=smaller.left_whole))
    if material.speed:
        rows = _timed(rows, models, example[:1], on_progress)
    refused = _refusal(rows, max_loss)
    ledger = ImageLedger(
        model=str(material.model),
        protocol=ImageProtocol(
            images=judged.name,
            judged=len(judged),
            calibrated=sum(len(labels) for _, labels in batches),
            shape=tuple(judged.pixel_values.shape[1:]),
        ),
        rows=tuple(rows),
        allowed=None if max_loss is None else max_loss.text,
        refused=refused,
        saved=None if refused else str(material.out),
        environment=environment(device_of(material.device)),
    )
    if not refused:
        write_record(directory / LEDGER, ledger)
        directory.rename(material.out)
    return ledger


def _row(
    scheme: str, model: Any, directory: Path, judged: Images, beside: Any | None = None
) -> ImageRow:
    """A model as it lies in its directory; `beside`: the one that was given."""
    logits = logits_of(model, judged.pixel_values)
    given = None if beside is None else logits_of(beside, judged.pixel_values)
    return ImageRow(
        scheme=scheme,
        disk_bytes=disk_bytes(directory),
        parameters=_parameters(model),
        flops=flops(model, (judged.pixel_values[:1].to(model.device),)),
        quality=quality(logits, judged.labels),
        divergence=None if given is None else divergence(given, logits),
    )


def _parameters(model: nn.Module) -> int:
    return sum(one.numel() for one in model.parameters())


def _batches(images: Images | None, model: Any) -> list[tuple[Tensor, Tensor]]:
    """Batches of calibration, drawn evenly from all images."""
    if images is None:
        return []
    step = max(1, len(images) // CALIBRATED)
    pixels, labels = images.pixel_values[::step][:CALIBRATED], images.labels[::step][:CALIBRATED]
    pixels, labels = pixels.to(model.device, model.dtype), labels.to(model.device)
    return list(zip(pixels.split(GRADIENT_BATCH), labels.split(GRADIENT_BATCH), strict=True))


def _loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    pixels, labels = batch
    return functional.cross_entropy(model(pixels).logits, labels)


def _timed(
    rows: Sequence[ImageRow], models: Sequence[nn.Module], image: Tensor, on_progress: OnProgress
) -> list[ImageRow]:
    """The rows with what timing in turns found, each against the row above."""
    found = time_in_turns(models, image, on_progress=on_progress)
    results = [replace(rows[0], latency=found[0])]
    for row, above, own in zip(rows[1:], found[:-1], found[1:], strict=True):
        results.append(replace(row, latency=own, speedup=speedup(above, own)))
    return results


def _refusal(rows: Sequence[ImageRow], max_loss: Allowance | None) -> str:
    """Why the last row may not be saved; empty where it may."""
    before, last = rows[0].quality, rows[-1]
    assert last.divergence is not None
    if not math.isfinite(last.quality.loss):
        return f"loss {last.quality.loss}: the model is ruined"
    spent = last.divergence.kl_mean
    if max_loss is None or (math.isfinite(spent) and spent <= max_loss.amount):
        return ""
    return (
        f"top-1 {before.accuracy:.2%} → {last.quality.accuracy:.2%}, KL {spent:.4f}: more than"
        f" {max_loss.text}"
    )
