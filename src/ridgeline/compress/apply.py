"""Schemes applied in order, each one a row that is measured against the row above it.

    1. For every scheme: the model is compressed by all schemes up to it and saved aside.
    2. Each is read back by transformers and put through a text beside the model as given.
    3. All of them decode in turns.
    4. What lost more than is allowed is thrown away; else the last row becomes the directory.

Nothing lies under the name that was asked for until it has been judged.
"""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
from msgspec.structs import replace
from torch import Tensor

from ridgeline import quantity
from ridgeline.checkpoints.adapters import examine
from ridgeline.checkpoints.files import CheckpointFiles, disk_bytes
from ridgeline.checkpoints.skeleton import ModelSkeleton
from ridgeline.compress.evaluate.allowance import Allowance
from ridgeline.compress.evaluate.judge import AS_GIVEN, Bench, OnProgress, QualityJudge, with_speed
from ridgeline.compress.evaluate.loaded import device_of
from ridgeline.compress.flow import arithmetic_of
from ridgeline.compress.material import Material, check, claimed, prepared
from ridgeline.compress.memory import forecast
from ridgeline.compress.merging import merge
from ridgeline.compress.pruning.ahead import GRADIENTS_IN, importance_of, shares_in_layers
from ridgeline.compress.pruning.report import counted
from ridgeline.compress.pruning.structured.prune import prune_units
from ridgeline.compress.pruning.structured.units import MULTIPLE
from ridgeline.compress.run import BlockDone, CompressionJob, stage
from ridgeline.compress.weight_spread import weight_spreads
from ridgeline.errors import InputError
from ridgeline.hardware.environment import environment
from ridgeline.hardware.freed_memory import unused_memory_bytes
from ridgeline.measure.device_name import device_name
from ridgeline.records.compression import CompressionLedger, CompressionRow, Quality, Search
from ridgeline.records.scheme import Scheme
from ridgeline.records.store import write_record


class SavedScheme(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """What there is to tell of a compression that was saved."""

    seconds: float = 0.0
    """Seconds that it took; 0 where an earlier run had made it."""
    notices: tuple[str, ...] = ()
    calibrated_in: str = ""
    """The arithmetic in which calibration went through the blocks; empty: none did."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemeRow:
    """One scheme that was applied, and its directory."""

    scheme: str
    directory: Path
    applied: SavedScheme


def steps(
    given: Path,
    schemes: Sequence[Scheme],
    work: Path,
    tokens: Tensor | None,
    on_progress: OnProgress,
    later: Sequence[Scheme] = (),
) -> list[SchemeRow]:
    """Apply schemes in order.

    Pruning neurons, heads or layers makes a new dense model, which the schemes after it
    start from; others are applied block by block, together with those before them.

    Args:
        given: The model.
        schemes: In order.
        work: Folder for the directories; those that are there already are not made again.
        tokens: Of calibration.
        on_progress: Told what is under way.
        later: Schemes that what comes of it will be given; widths stay a multiple of their groups.

    Raises:
        InputError: The model's files cannot be read, or a scheme does not fit it.
    """
    made: list[SchemeRow] = []
    start = given
    together: list[Scheme] = []
    for count, scheme in enumerate(schemes, start=1):
        directory = work / f"row-{count}"
        if scheme.pruning is not None and scheme.pruning.structure != "weights":
            began = time.monotonic()
            notices: tuple[str, ...] = ()
            seen_in = ""
            if not directory.exists():
                on_progress(f"{scheme.name}: choosing what to prune")
                before = made[-1].directory if made else given
                multiple = _multiple([*schemes[count:], *later])
                kept = prune_units(before, scheme.pruning, directory, tokens, multiple=multiple)
                notices = kept.notices
                if scheme.pruning.criterion == "wanda":  # others look at no activations
                    seen_in = arithmetic_of(ModelSkeleton(CheckpointFiles(before)))
                elif scheme.pruning.criterion == "taylor":
                    seen_in = GRADIENTS_IN
            seconds = time.monotonic() - began
            made.append(
                SchemeRow(
                    scheme=scheme.name,
                    directory=directory,
                    applied=SavedScheme(seconds=seconds, notices=notices, calibrated_in=seen_in),
                )
            )
            start, together = directory, []
            continue
        together = [*together, scheme]
        importance = importance_of(start, together, tokens)
        job = CompressionJob(
            model=start,
            schemes=tuple(together),
            work=directory.with_name(f"{directory.name}.blocks"),
            tokens=tokens,
            importance=importance,
            of_layer=shares_in_layers(start, tuple(together), importance),
        )
        applied = saved(job, directory, scheme.name, on_progress)
        made.append(SchemeRow(scheme=scheme.name, directory=directory, applied=applied))
    return made


def _multiple(later: Sequence[Scheme]) -> int:
    """The number that widths stay a multiple of, for later schemes' groups."""
    groups = [scheme.weights.group or 1 for scheme in later if scheme.weights is not None]
    return math.lcm(MULTIPLE, *groups)


_PLENTY = 4
"""Memory that is freed is kept where nobody uses so many times what is needed."""


def saved(job: CompressionJob, directory: Path, name: str, on_progress: OnProgress) -> SavedScheme:
    """Compress, unless an earlier run has.

    Args:
        job: What to do.
        directory: Where to save.
        name: For progress.
        on_progress: Told what is under way.

    Raises:
        InputError: As `stage` says.
    """
    if directory.exists():
        return SavedScheme()
    began = time.monotonic()
    peak_bytes = max(1e6, forecast(job).peak_bytes)
    told = f"{name}: about {quantity.memory(peak_bytes)} of memory are needed"
    keeps_freed = unused_memory_bytes() > _PLENTY * peak_bytes
    on_progress(
        f"{told}; what is freed is kept besides, as there is plenty" if keeps_freed else told
    )

    def progress(done: BlockDone) -> None:
        on_progress(f"{name}: block {done.block + 1} of {done.num_blocks}")

    staged = stage(job, progress, keeps_freed=keeps_freed)
    notices = staged.unread() + tuple(
        f"{layer.name}: {notice}" for layer in staged.layers for notice in layer.notices
    )
    staged.save(directory)
    return SavedScheme(
        seconds=time.monotonic() - began, notices=notices, calibrated_in=staged.calibrated_in
    )


LEDGER = "ledger.json"
MERGED = "adapter merged"


def compress(
    material: Material,
    schemes: Sequence[Scheme],
    *,
    adapter: Path | None = None,
    max_loss: Allowance | None = None,
    bench: Bench | None = None,
    on_progress: OnProgress = lambda _: None,
) -> CompressionLedger:
    """Apply schemes in order, measure each row, and save the last unless it lost too much.

    Args:
        material: Model, texts, and where to.
        schemes: Prunings, then at most one quantisation; none: an adapter is only merged.
        adapter: A PEFT LoRA directory, added to the weights first; what comes of it is then what
            the rows are compared with.
        max_loss: Above it nothing is saved, and the ledger says why and names layers.
        bench: Measures decoding; None: speed is left out.
        on_progress: Told what is under way.

    Raises:
        InputError: Something that was given cannot be used.
        OSError: The disk is full, or not to be written to; what was done is kept.
    """
    if not schemes and adapter is None:
        raise InputError("nothing to do: no scheme, and no adapter to merge")
    check_order(schemes)
    if adapter is not None:
        examine(adapter, merging=True)
    order = [*([str(adapter)] if adapter else []), *(one.name for one in schemes)]
    with claimed(material, schemes, order):
        return _compressed(material, schemes, adapter, max_loss, bench, on_progress)


def check_order(schemes: Sequence[Scheme]) -> None:
    """Refuse schemes that cannot follow one another.

    Raises:
        InputError: One is for image models, or comes after a quantisation.
    """
    quantised = None
    for scheme in schemes:
        if scheme.images:
            raise InputError(
                f"--scheme {scheme.name} is for image models; a language model takes"
                f" {scheme.name.split('-')[0]}, or {scheme.name.split('-')[0]}-static"
            )
        if quantised is not None and (scheme.weights is not None or scheme.pruning is not None):
            raise InputError(
                f"--scheme {scheme.name} after {quantised}: quantised weights are changed no more;"
                " give prunings first, then one quantisation"
            )
        quantised = scheme.name if scheme.weights is not None else quantised


def _compressed(
    material: Material,
    schemes: Sequence[Scheme],
    adapter: Path | None,
    max_loss: Allowance | None,
    bench: Bench | None,
    on_progress: OnProgress,
) -> CompressionLedger:
    tokens, judged = prepared(material, calibrated=any(one.needs_calibration for one in schemes))
    given = material.model if adapter is None else _merged(material, adapter, on_progress)
    made = steps(given, schemes, material.work, tokens, on_progress)
    judge = None if judged is None else QualityJudge(given, judged, material.device, on_progress)
    rows = [_unjudged(AS_GIVEN, given) if judge is None else judge.baseline()]
    if adapter is not None:
        rows = [replace(rows[0], scheme=MERGED)]
    rows += [row(judge, one) for one in made]
    directories = [given, *(one.directory for one in made)]
    if bench is not None:
        rows = with_speed(rows, bench(directories, on_progress))
    return finished(material, judge, rows, directories[-1], max_loss)


def _merged(material: Material, adapter: Path, on_progress: OnProgress) -> Path:
    directory = material.work / "merged"
    if not directory.exists():
        on_progress(f"merging {adapter}")
        layers = merge(material.model, adapter, directory)
        lost = max((layer.error for layer in layers), default=0.0)
        if lost:
            on_progress(
                f"merged and rounded again, which moved weights by up to {lost:.1%} of their size"
            )
    return directory


def as_given(material: Material) -> CompressionLedger:
    """The ledger of a model that nothing is done to; nothing is written.

    Raises:
        InputError: It is no model, or there is something at `material.out`.
    """
    check(material, ())
    return _ledger(material, (_unjudged(AS_GIVEN, material.model),))


def row(judge: QualityJudge | None, step: SchemeRow) -> CompressionRow:
    """A directory as a row, judged where there is a judge."""
    if judge is None:
        found = _unjudged(step.scheme, step.directory)
    else:
        found = judge.row(step.scheme, step.directory)
    applied = step.applied
    return replace(
        found,
        seconds=applied.seconds,
        notices=applied.notices,
        calibrated_in=applied.calibrated_in,
    )


def _unjudged(scheme: str, directory: Path) -> CompressionRow:
    return CompressionRow(scheme=scheme, disk_bytes=disk_bytes(directory), zeros=counted(directory))


def finished(
    material: Material,
    judge: QualityJudge | None,
    rows: Sequence[CompressionRow],
    directory: Path,
    allowed: Allowance | None,
    search: Search | None = None,
) -> CompressionLedger:
    """Move the last row to its name, its ledger in it, or say why not; the rest goes away."""
    last = rows[-1]
    refused = "" if judge is None or len(rows) == 1 else refusal(judge.quality, last, allowed)
    sensitive = judge.most_sensitive(directory, last.scheme) if judge and refused else ()
    ledger = replace(
        _ledger(material, rows),
        protocol=None if judge is None else judge.judged.protocol,
        allowed=None if allowed is None else allowed.text,
        refused=refused,
        sensitive=sensitive,
        saved=None if refused else str(material.out),
        search=search,
        spreads_before=() if refused else weight_spreads(material.model),
        spreads=() if refused else weight_spreads(directory),
    )
    if not refused:
        write_record(directory / LEDGER, ledger)
        directory.rename(material.out)
    shutil.rmtree(material.work, ignore_errors=True)
    return ledger


def _ledger(material: Material, rows: Sequence[CompressionRow]) -> CompressionLedger:
    return CompressionLedger(
        model=str(material.model),
        protocol=None,
        rows=tuple(rows),
        allowed=None,
        saved=str(material.out),
        environment=environment(device=device_name(device_of(material.device))),
    )


def refusal(before: Quality, last: CompressionRow, allowed: Allowance | None) -> str:
    """Why a row may not be saved; empty where it may."""
    after, divergence = last.quality, last.divergence
    assert after is not None
    assert divergence is not None
    if not math.isfinite(after.perplexity):
        return f"perplexity {after.perplexity}: the model is ruined"
    if allowed is None or allowed.holds(before, after, divergence):
        return ""
    rise = after.perplexity / before.perplexity - 1
    return (
        f"perplexity {before.perplexity:.3f} → {after.perplexity:.3f} ({rise:+.2%}), KL"
        f" {divergence.kl_mean:.4f}: more than {allowed.text}"
    )
