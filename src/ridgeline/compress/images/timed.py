"""Rows of a ledger with the calls of their models, each in its own process and runtime."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from msgspec.structs import replace

from ridgeline.compress.images.calls import TimedCalls, TimedCandidate, faster, summary, time_calls
from ridgeline.compress.images.material import Images
from ridgeline.compress.images.measure import speedup, time_in_turns
from ridgeline.compress.images.models import VisionModel
from ridgeline.compress.images.quantised import OnnxModule
from ridgeline.compress.images.recognised import ONNX, PROGRAM
from ridgeline.compress.images.saved import export_to
from ridgeline.compress.vision.batches import moved
from ridgeline.errors import InputError
from ridgeline.records.image_compression import Calls, ImageRow, Latency

BATCHES = (1, 8)
"""One image, as a camera gives it, and a few."""


def timed(
    rows: Sequence[ImageRow],
    models: Sequence[tuple[VisionModel, Path | None]],
    images: Images,
    work: Path,
    on_progress: Callable[[str], None],
) -> list[ImageRow]:
    """The rows with calls at each batch, and the last one's speed-up.

    Where the last row computes in ONNX Runtime, the model as given is timed there as well as in
    PyTorch, and the speed-up is over the model as given in the same runtime: what another runtime
    alone gains is no merit of fewer bits. Models on a GPU, and models that cannot be exported, are
    timed in turns in this process.

    Args:
        rows: In order.
        models: Of each row, with the folder of what is saved.
        images: Real ones.
        work: A folder for what the processes read.
        on_progress: Told what is under way.
    """
    if any(_on_gpu(model) for model, _ in models):
        return _in_this_process(rows, models, images, on_progress)
    try:
        candidates = _candidates(models, images, work, on_progress)
    except InputError as error:
        found = _in_this_process(rows, models, images, on_progress)
        return [*found[:-1], replace(found[-1], remark=_joined(found[-1].remark, str(error)))]
    flat = [one for per_row in candidates for one in per_row]
    owner = [place for place, per_row in enumerate(candidates) for _ in per_row]
    threads = torch.get_num_threads()
    calls: list[list[Calls]] = [[] for _ in rows]
    first: list[TimedCalls] = []
    for batch in BATCHES:
        if len(images) < batch or batch > (images.most or batch):
            continue
        taken = time_calls(flat, images.head(batch), work, threads=threads, on_progress=on_progress)
        first = first or taken
        for place, one, own in zip(owner, flat, taken, strict=True):
            calls[place].append(summary(one, own, batch, threads))
    results = [
        replace(row, calls=tuple(own), latency=_latency(first[owner.index(place)], own[0]))
        for place, (row, own) in enumerate(zip(rows, calls, strict=True))
    ]
    for place in range(1, len(results)):
        above, below = _pair(flat, owner, place)
        results[place] = replace(results[place], speedup=faster(first[above], first[below]))
    return results


def _latency(found: TimedCalls, one: Calls) -> Latency:
    """The same calls as other records have them, for `ridgeline compare`."""
    medians = found.medians
    return Latency(
        seconds=statistics.median(medians),
        round_seconds=tuple(medians),
        batch=one.batch,
        dtype=one.runtime.rpartition(", ")[2],
        device="cpu",
        threads=one.threads,
    )


def _pair(flat: Sequence[TimedCandidate], owner: Sequence[int], place: int) -> tuple[int, int]:
    """The candidates that a row's speed-up compares: the nearest above it in the same runtime."""
    own = next(at for at, row in enumerate(owner) if row == place)
    same = [
        at for at, row in enumerate(owner) if row < place and flat[at].runtime == flat[own].runtime
    ]
    return same[-1], own


def _candidates(
    models: Sequence[tuple[VisionModel, Path | None]],
    images: Images,
    work: Path,
    on_progress: Callable[[str], None],
) -> list[list[TimedCandidate]]:
    """Files that processes of their own can load, for each row."""
    example = images.head(2)
    work.mkdir(parents=True, exist_ok=True)
    results: list[list[TimedCandidate]] = []
    last = models[-1][0]
    for place, (model, folder) in enumerate(models):
        if isinstance(model.module, OnnxModule):
            assert folder is not None
            version = f"ONNX Runtime {model.module.version}"
            results.append(
                [
                    TimedCandidate(
                        file=folder / ONNX, runtime="onnx", computed_with=f"{version}, int8"
                    )
                ]
            )
            continue
        on_progress("writing models to be timed")
        program = work / f"{place}-{PROGRAM}"
        export_to(model.module, example, program)
        own = [
            TimedCandidate(
                file=program, runtime="torch", computed_with=f"PyTorch {torch.__version__}, fp32"
            )
        ]
        if isinstance(last.module, OnnxModule) and place == len(models) - 2:
            version = f"ONNX Runtime {last.module.version}"
            path = work / f"{place}-{ONNX}"
            export_to(model.module, example, path)
            own.append(TimedCandidate(file=path, runtime="onnx", computed_with=f"{version}, fp32"))
        results.append(own)
    return results


def _in_this_process(
    rows: Sequence[ImageRow],
    models: Sequence[tuple[VisionModel, Path | None]],
    images: Images,
    on_progress: Callable[[str], None],
) -> list[ImageRow]:
    place = next(one for one in models[0][0].module.parameters() if one.is_floating_point())
    image = moved(images.head(1), place)
    modules = [model.module for model, _ in models]
    found = time_in_turns(modules, image, on_progress=on_progress)
    results = [replace(rows[0], latency=found[0])]
    for row, above, own in zip(rows[1:], found[:-1], found[1:], strict=True):
        results.append(replace(row, latency=own, speedup=speedup(above, own)))
    return results


def _on_gpu(model: VisionModel) -> bool:
    return any(one.device.type == "cuda" for one in model.module.parameters())


def _joined(*said: str) -> str:
    return "; ".join(one for one in said if one)
