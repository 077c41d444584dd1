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
from collections.abc import Sequence
from pathlib import Path

from msgspec.structs import replace

from ridgeline.checkpoints.adapters import examine
from ridgeline.checkpoints.files import disk_bytes
from ridgeline.compress.evaluate.allowance import Allowance
from ridgeline.compress.evaluate.evaluate import environment
from ridgeline.compress.evaluate.judge import AS_GIVEN, Bench, Judge, Say, with_speed
from ridgeline.compress.evaluate.loaded import device_of
from ridgeline.compress.material import Material, check, claimed, prepared
from ridgeline.compress.merging import merge
from ridgeline.compress.pruning.report import counted
from ridgeline.compress.steps import Step, steps
from ridgeline.errors import InputError
from ridgeline.records.compression import CompressionLedger, CompressionRow, Search
from ridgeline.records.scheme import Scheme
from ridgeline.records.store import write_record

LEDGER = "ledger.json"
MERGED = "adapter merged"


def compress(
    material: Material,
    schemes: Sequence[Scheme],
    *,
    adapter: Path | None = None,
    max_loss: Allowance | None = None,
    bench: Bench | None = None,
    say: Say = lambda _: None,
) -> CompressionLedger:
    """Apply schemes in order, measure each row, and save the last unless it lost too much.

    Args:
        material: Model, texts, and where to.
        schemes: Prunings, then at most one rounding; none: an adapter is only merged.
        adapter: A PEFT LoRA directory, added to the weights first; what comes of it is then what
            the rows are compared with.
        max_loss: Above it nothing is saved, and the ledger says why and names layers.
        bench: Measures decoding; None: speed is left out.
        say: Told what is under way.

    Raises:
        InputError: Something that was given cannot be used.
        OSError: The disk is full, or not to be written to; what was done is kept.
    """
    if not schemes and adapter is None:
        raise InputError("nothing to do: no scheme, and no adapter to merge")
    _check_order(schemes)
    if adapter is not None:
        examine(adapter, merging=True)
    order = [*([str(adapter)] if adapter else []), *(one.name for one in schemes)]
    with claimed(material, schemes, order):
        return _compressed(material, schemes, adapter, max_loss, bench, say)


def _check_order(schemes: Sequence[Scheme]) -> None:
    rounding = None
    for scheme in schemes:
        if rounding is not None and (scheme.weights is not None or scheme.pruning is not None):
            raise InputError(
                f"--scheme {scheme.name} after {rounding}: weights in few bits are changed no more;"
                " give prunings first, then one rounding"
            )
        rounding = scheme.name if scheme.weights is not None else rounding


def _compressed(
    material: Material,
    schemes: Sequence[Scheme],
    adapter: Path | None,
    max_loss: Allowance | None,
    bench: Bench | None,
    say: Say,
) -> CompressionLedger:
    tokens, judged = prepared(material, calibrated=any(one.needs_calibration for one in schemes))
    given = material.model if adapter is None else _merged(material, adapter, say)
    made = steps(given, schemes, material.work, tokens, say)
    judge = None if judged is None else Judge(given, judged, material.device, say)
    rows = [_unjudged(AS_GIVEN, given) if judge is None else judge.baseline()]
    if adapter is not None:
        rows = [replace(rows[0], scheme=MERGED)]
    rows += [row(judge, one) for one in made]
    directories = [given, *(one.directory for one in made)]
    if bench is not None:
        rows = with_speed(rows, bench(directories, say))
    return finished(material, judge, rows, directories[-1], max_loss)


def _merged(material: Material, adapter: Path, say: Say) -> Path:
    directory = material.work / "merged"
    if not directory.exists():
        say(f"merging {adapter}")
        layers = merge(material.model, adapter, directory)
        lost = max((layer.error for layer in layers), default=0.0)
        if lost:
            say(f"merged and rounded again, which moved weights by up to {lost:.1%} of their size")
    return directory


def as_given(material: Material) -> CompressionLedger:
    """The ledger of a model that nothing is done to; nothing is written.

    Raises:
        InputError: It is no model, or there is something at `material.out`.
    """
    check(material, ())
    return _ledger(material, (_unjudged(AS_GIVEN, material.model),))


def row(judge: Judge | None, step: Step) -> CompressionRow:
    """A directory as a row, judged where there is a judge."""
    if judge is None:
        found = _unjudged(step.scheme, step.directory)
    else:
        found = judge.row(step.scheme, step.directory)
    return replace(found, seconds=step.seconds, notices=step.notices)


def _unjudged(scheme: str, directory: Path) -> CompressionRow:
    return CompressionRow(scheme=scheme, disk_bytes=disk_bytes(directory), zeros=counted(directory))


def finished(
    material: Material,
    judge: Judge | None,
    rows: Sequence[CompressionRow],
    directory: Path,
    allowed: Allowance | None,
    search: Search | None = None,
) -> CompressionLedger:
    """Move the last row to its name, its ledger in it, or say why not; the rest goes away."""
    last = rows[-1]
    refused = "" if judge is None or len(rows) == 1 else refusal(judge, last, allowed)
    sensitive = judge.most_sensitive(directory, last.scheme) if judge and refused else ()
    ledger = replace(
        _ledger(material, rows),
        protocol=None if judge is None else judge.judged.protocol,
        allowed=None if allowed is None else allowed.text,
        refused=refused,
        sensitive=sensitive,
        saved=None if refused else str(material.out),
        search=search,
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
        environment=environment(device_of(material.device)),
    )


def refusal(judge: Judge, last: CompressionRow, allowed: Allowance | None) -> str:
    """Why a row may not be saved; empty where it may."""
    before, after, divergence = judge.quality, last.quality, last.divergence
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
