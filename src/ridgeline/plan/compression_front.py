"""Measured schemes of one model side by side, and others foretold from them.

Ledgers of `ridgeline compress` are measured; `library_compression/` holds those of the example
model. What is foretold keeps to rounding theory (`cost/rounding_loss.py`) and starts from the
measured scheme that rounds in the same way with the nearest number of bits. It is never taken from
its own row, so that a foretold scheme that was measured too shows how good the theory is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

import msgspec

from ridgeline.cost.rounding_loss import noise_ratio, resized_bytes
from ridgeline.errors import InputError
from ridgeline.records.compression import CompressionLedger, CompressionRow, Quality
from ridgeline.records.compression_front import (
    CompressionFront,
    ForetoldScheme,
    LedgerSource,
    PointKind,
    SchemePoint,
)
from ridgeline.records.scheme import Scheme
from ridgeline.records.scheme_names import parse
from ridgeline.records.store import read_record

AS_GIVEN = "as given"
EVERY_KIND: tuple[PointKind, ...] = ("bits", "zeros", "smaller")
MOST_RISE = 0.01


def compression_front(
    ledgers: Sequence[Path] = (),
    *,
    schemes: Sequence[str] = (),
    kinds: Sequence[PointKind] = EVERY_KIND,
    most_rise: float = MOST_RISE,
) -> CompressionFront:
    """Every measured scheme, the best for their size, and the schemes that are foretold.

    Args:
        ledgers: What `ridgeline compress` wrote; none: those of the example model.
        schemes: To be foretold.
        kinds: Of points that are shown.
        most_rise: Of the perplexity, as a share.

    Raises:
        InputError: A file is no ledger, or they are not of one model on one text.
    """
    if not most_rise >= 0.0:
        raise InputError(f"--max-rise {most_rise}: give a share such as 1%")
    read = _read(ledgers)
    given = read[0].rows[0]
    points = _points(read, kinds, most_rise)
    every = _points(read, EVERY_KIND, most_rise)
    allowed = [one for one in points if one.allowed]
    asked = [_foretold(parse(name), every, read, given) for name in dict.fromkeys(schemes)]
    assert read[0].protocol is not None  # `_read` has refused others
    return CompressionFront(
        model=read[0].model,
        protocol=read[0].protocol,
        most_rise=most_rise,
        points=points,
        foretold=[one for one in asked if isinstance(one, ForetoldScheme)],
        smallest_allowed=min(allowed, key=lambda one: one.disk_bytes).scheme if allowed else None,
        notes=[one for one in asked if isinstance(one, str)],
        sources=[_source(one) for one in read],
    )


# -- ledgers ---------------------------------------------------------------------------------------


def _read(paths: Sequence[Path]) -> list[CompressionLedger]:
    if paths:
        read = [read_record(path, CompressionLedger) for path in paths]
    else:
        folder = files("ridgeline.plan").joinpath("library_compression")
        shipped = {one.name: one for one in folder.iterdir() if one.name.endswith(".json")}
        paths = [Path(name) for name in sorted(shipped)]
        texts = [shipped[path.name].read_bytes() for path in paths]
        read = [msgspec.json.decode(text, type=CompressionLedger) for text in texts]
    for path, ledger in zip(paths, read, strict=True):
        if any(row.quality is None for row in ledger.rows) or ledger.protocol is None:
            raise InputError(f"{path}: nothing was judged; use ridgeline compress with --text FILE")
        if len(ledger.rows) < 2:
            raise InputError(f"{path}: holds no scheme; use ridgeline compress with --scheme NAME")
        if (ledger.model, ledger.protocol) != (read[0].model, read[0].protocol):
            raise InputError(
                f"{path}: {ledger.model} on {ledger.protocol.text} is not judged as"
                f" {read[0].model} of {paths[0]} is; give ledgers of one model, text and context"
            )
    return read


def _source(ledger: CompressionLedger) -> LedgerSource:
    made = ledger.environment
    return LedgerSource(
        command=" ".join(made.command),
        date=made.date,
        machine=f"{made.device}, {made.cpu_count} cores",
        torch=made.torch,
        ridgeline=made.ridgeline,
    )


# -- points ----------------------------------------------------------------------------------------


def _points(
    ledgers: Sequence[CompressionLedger], kinds: Sequence[PointKind], most_rise: float
) -> list[SchemePoint]:
    """The model as given, then every other row of a kind that is shown."""
    found = {AS_GIVEN: _point(ledgers[0].rows[0], ledgers[0].rows[0], AS_GIVEN, None, most_rise)}
    for ledger in ledgers:
        label = ""
        for place, row in enumerate(ledger.rows[1:]):
            label = f"{label} + {row.scheme}" if label else row.scheme
            kind = _kind(row.scheme)
            if kind in kinds or kind is None:
                given, own = ledger.rows[0], place == 0
                found[label] = _point(row, given, label, kind, most_rise, own=own)
    points = list(found.values())
    return [
        msgspec.structs.replace(one, best_for_its_size=not any(_beats(it, one) for it in points))
        for one in points
    ]


def _beats(one: SchemePoint, other: SchemePoint) -> bool:
    """Whether it is as good in both and better in one."""
    mine, its = (one.disk_bytes, one.perplexity), (other.disk_bytes, other.perplexity)
    return mine != its and all(a <= b for a, b in zip(mine, its, strict=True))


def _kind(name: str) -> PointKind | None:
    """What a row's scheme does; None: it is no scheme, such as a merged adapter."""
    try:
        pruning = parse(name).pruning
    except InputError:
        return None
    if pruning is None:
        return "bits"
    return "zeros" if pruning.structure == "weights" else "smaller"


def _point(
    row: CompressionRow,
    given: CompressionRow,
    label: str,
    kind: PointKind | None,
    most_rise: float,
    *,
    own: bool = False,
) -> SchemePoint:
    quality, start = _quality(row), _quality(given)
    rise = quality.perplexity / start.perplexity - 1.0
    return SchemePoint(
        scheme=label,
        kind=kind,
        disk_bytes=row.disk_bytes,
        smaller=given.disk_bytes / row.disk_bytes,
        perplexity=quality.perplexity,
        rise=rise,
        kl_mean=0.0 if row.divergence is None else row.divergence.kl_mean,
        zeros=None if row.zeros is None else row.zeros.share_of_matrices,
        tokens_per_second=None if row.decoding is None else row.decoding.tokens_per_second,
        speedup=row.speedup if own else None,
        fewer_reads=_fewer_reads(row, given),
        best_for_its_size=False,
        allowed=rise <= most_rise,
    )


def _quality(row: CompressionRow) -> Quality:
    assert row.quality is not None  # `_read` has refused others
    return row.quality


def _fewer_reads(row: CompressionRow, given: CompressionRow) -> float | None:
    if row.decoding is None or given.decoding is None:
        return None
    return given.decoding.read_bytes / row.decoding.read_bytes


# -- what is foretold ------------------------------------------------------------------------------


def _foretold(
    asked: Scheme,
    points: Sequence[SchemePoint],
    ledgers: Sequence[CompressionLedger],
    given: CompressionRow,
) -> ForetoldScheme | str:
    """The scheme from the nearest measured one, or why there is nothing to begin with."""
    rows = {row.scheme: row for ledger in ledgers for row in ledger.rows[1:2]}
    alike = [
        (name, other.weights.bits)
        for name in rows
        if _kind(name) == "bits" and name != asked.name and (other := parse(name)).weights
        if _way(other) == _way(asked)
    ]
    if asked.weights is None or asked.weights.kind != "int" or not alike:
        return (
            f"{asked.name} is not foretold: no measured scheme rounds weights to integers in the"
            " same way with other bits"
        )
    bits = asked.weights.bits
    basis, known = min(alike, key=lambda one: (abs(one[1] - bits), -one[1]))
    row, start = rows[basis], _quality(given)
    if row.zeros is None or row.divergence is None:
        return f"{asked.name} is not foretold: {basis} was measured without zeros or divergence"
    weights, noise = row.zeros.matrix_weights, noise_ratio(known, bits)
    size = resized_bytes(row.disk_bytes, known, bits, weights)
    loss = start.loss + (_quality(row).loss - start.loss) * noise
    reads = None
    if row.decoding is not None and given.decoding is not None:
        read = resized_bytes(row.decoding.read_bytes, known, bits, weights)
        reads = given.decoding.read_bytes / read
    return ForetoldScheme(
        scheme=asked.name,
        basis=basis,
        disk_bytes=size,
        smaller=given.disk_bytes / size,
        perplexity=math.exp(loss),
        rise=math.expm1(loss - start.loss),
        kl_mean=row.divergence.kl_mean * noise,
        fewer_reads=reads,
        measured=next((one for one in points if one.scheme == asked.name), None),
    )


def _way(scheme: Scheme) -> Scheme:
    """How a scheme rounds, whatever its bits and its name."""
    weights = scheme.weights and msgspec.structs.replace(scheme.weights, bits=0)
    return msgspec.structs.replace(scheme, name="", weights=weights)
