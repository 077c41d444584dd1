"""What `ridgeline train` shows: a line while the run goes, and the whole of it when it is done."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from ridgeline import quantity
from ridgeline.records.training_run import (
    Beside,
    DeviceUse,
    Goodput,
    LoggedStep,
    TaughtStage,
    TrainingRun,
)
from ridgeline.report import document as doc
from ridgeline.report.plots import PHASES

_LEVELS = "▁▂▃▄▅▆▇█"
_CURVE_COLUMNS = 60
_BAR_COLUMNS = 40
_INPUT_BOUND = 0.1
"""Share of a step's time from which waiting for images is worth a word."""


def live_line(line: LoggedStep, steps: int | None) -> str:
    """The newest logged step in one line."""
    parts = [f"step {line.step:,}" + (f" of {steps:,}" if steps else "")]
    parts.append(f"loss {line.loss:.4f}")
    if line.validation_loss is not None:
        parts.append(f"held out {line.validation_loss:.4f}")
    if line.top1 is not None:
        parts.append(f"top-1 {quantity.percent(line.top1, 2)}")
    images = line.decoded_per_second is not None
    parts.append(quantity.scaled(line.tokens_per_second, "images/s" if images else "tokens/s"))
    if line.input_bound_share is not None and line.input_bound_share >= _INPUT_BOUND:
        parts.append(f"waits for images {quantity.percent(line.input_bound_share, 0)}")
    if line.unreadable_images:
        parts.append(f"{line.unreadable_images} unreadable")
    if line.mfu is not None:
        parts.append(f"MFU {quantity.percent(line.mfu, 1)}")
    parts.append(f"peak {quantity.memory(line.peak_memory_bytes)}")
    if line.devices:
        parts.append(_gpus(line.devices))
    if line.skipped_steps:
        parts.append(f"{line.skipped_steps} skipped")
    if steps and steps > line.step:
        parts.append(f"{quantity.seconds((steps - line.step) * line.step_seconds)} left")
    parts += [one for one in (line.straggler, line.drift) if one]
    return " · ".join(parts)


def _gpus(devices: Sequence[DeviceUse]) -> str:
    """The least busy of the GPUs, and the power of all."""
    shares = [one.busy_share for one in devices if one.busy_share is not None]
    watts = [one.watts for one in devices if one.watts is not None]
    words = [f"{quantity.percent(min(shares), 0)} busy"] if shares else []
    words += [f"{sum(watts):.0f} W"] if watts else []
    return "GPUs " + ", ".join(words or ["seen"])


def live_pictures(lines: Sequence[LoggedStep]) -> list[str]:
    """The loss so far as a curve, and the phases of the newest step as a bar."""
    losses = [line.loss for line in lines]
    finite = [loss for loss in losses if math.isfinite(loss)]
    found = []
    if len(finite) > 1:
        found.append(f"loss {max(finite):.3f} {curve(losses)} {losses[-1]:.3f}")
    found.append(f"step {quantity.seconds(lines[-1].step_seconds)} {phase_bar(lines[-1].phases)}")
    return found


def curve(values: Sequence[float], columns: int = _CURVE_COLUMNS) -> str:
    """Values as a row of blocks, each the mean of its part.

    >>> curve([4.0, 3.0, 2.0, 1.0])
    '█▆▃▁'
    """
    count = min(columns, len(values))
    cuts = [len(values) * i // count for i in range(count + 1)]
    means = []
    for start, stop in itertools.pairwise(cuts):
        part = [value for value in values[start:stop] if math.isfinite(value)]
        means.append(sum(value / len(part) for value in part) if part else math.nan)
    known = [mean for mean in means if not math.isnan(mean)]
    if not known:
        return "?" * count
    # Halves: the difference of the largest floats is none.
    low = min(known) / 2
    span = max(known) / 2 - low
    shares = [(mean / 2 - low) / span if span > 0 else 0.0 * mean for mean in means]
    return "".join(
        "?" if math.isnan(share) else _LEVELS[round(share * (len(_LEVELS) - 1))] for share in shares
    )


def phase_bar(phases: Mapping[str, float], columns: int = _BAR_COLUMNS) -> str:
    """A step as a bar of letters, and the shares in words.

    >>> phase_bar({"forward": 1.0, "backward": 3.0}, 8)
    'ffbbbbbb forward 25 %, backward 75 %'
    """
    total = sum(phases.values()) or 1.0
    ends = [round(columns * so_far / total) for so_far in itertools.accumulate(phases.values())]
    bar = "".join(
        (PHASES[name].fill if name in PHASES else name[0]) * (end - start)
        for name, start, end in zip(phases, [0, *ends[:-1]], ends, strict=True)
    )
    return f"{bar} {_shares(phases)}"


def _shares(phases: Mapping[str, float]) -> str:
    total = sum(phases.values()) or 1.0
    shares = {name: seconds / total for name, seconds in phases.items()}
    large = {name: share for name, share in shares.items() if share >= 0.005}
    return ", ".join(f"{name} {quantity.percent(share, 0)}" for name, share in large.items())


def run_document(run: TrainingRun, losses: Sequence[float], folder: Path) -> doc.ReportDocument:
    """What a run did: loss, speed and memory beside what was predicted, where the time went."""
    shown: list[doc.Block] = [_lead(run)]
    if run.stopped:
        shown.append(doc.Paragraph(f"It ended early: {run.stopped}", "warning"))
    if len(losses) > 1:
        shown.append(doc.Paragraph(f"loss {losses[0]:.3f} {curve(losses)} {losses[-1]:.3f}"))
    shown.append(_figures(run))
    if run.teachers:
        shown.append(_teachers(run.teachers))
    if any(run.phases.values()):
        parts = [
            doc.BarPart(name, seconds, quantity.seconds(seconds), PHASES.get(name, PHASES["other"]))
            for name, seconds in run.phases.items()
        ]
        total = quantity.seconds(sum(run.phases.values()))
        shown += [doc.Bars([doc.Bar("step", total, parts)]), doc.Paragraph(_shares(run.phases))]
    if run.goodput is not None:
        shown.append(doc.Paragraph(goodput_line(run.goodput)))
    shown += [doc.Lines(run.notes, "warning"), doc.Paragraph(f"Everything is in {folder}", "dim")]
    return doc.ReportDocument("Training run", shown)


def _lead(run: TrainingRun) -> doc.Lead:
    loss = "no finite loss" if run.final_loss is None else f"loss {run.final_loss:.4f}"
    of_images = run.recipe.images is not None
    if of_images and run.validation_loss is not None:
        loss += f", held out {run.validation_loss:.4f}"
        loss += f", top-1 {quantity.percent(run.top1, 2)}" if run.top1 is not None else ""
    elif run.validation_loss is not None and math.isfinite(run.validation_loss):
        perplexity = quantity.digits(math.exp(min(run.validation_loss, 700.0)))
        loss += f", held out {run.validation_loss:.4f} (perplexity {perplexity})"
    many = "process" if run.processes == 1 else "processes"
    took = f"{quantity.seconds(run.wall_seconds)} on {run.processes} {many}"
    what = "images" if of_images else "tokens"
    return doc.Lead(f"{loss} after {run.steps:,} steps and {run.tokens:,} {what}", f"in {took}")


def _figures(run: TrainingRun) -> doc.DataTable:
    rows: list[tuple[doc.Cell, ...]] = [
        (
            f"{'images' if run.recipe.images else 'tokens'} per second",
            quantity.scaled(run.tokens_per_second, ""),
            "",
            "",
        )
    ]
    if run.mfu is not None:
        rows.append(("MFU", quantity.percent(run.mfu, 1), "", ""))
    rows.append(_beside("step", run.step_seconds, quantity.seconds))
    rows.append(_beside("peak memory, worst rank", run.peak_memory_bytes, quantity.memory))
    if run.bytes_sent is not None:
        rows.append(("sent per step and rank", quantity.memory(run.bytes_sent), "", ""))
    if run.skipped_steps:
        rows.append(("steps skipped (overflow)", f"{run.skipped_steps:,}", "", ""))
    trained = f"{run.trainable_parameters:,} of {run.parameters:,}"
    rows.append(("parameters trained", trained, "", ""))
    return doc.DataTable(
        (doc.words("figure", ""), *doc.figures("measured", "predicted", "off by")), rows
    )


def _teachers(stages: Sequence[TaughtStage]) -> doc.DataTable:
    """A row for each teacher; what is held out, against the row above."""
    rows: list[tuple[doc.Cell, ...]] = []
    before: float | None = None
    for one in stages:
        held, change = one.validation_loss, ""
        if held is not None and before is not None:
            change = f"{held - before:+.4f}"
        rows.append(
            (
                one.teacher,
                f"{one.steps:,}",
                None if one.loss is None else f"{one.loss:.4f}",
                None if held is None else f"{held:.4f}",
                change,
                quantity.seconds(one.seconds),
            )
        )
        before = held
    return doc.DataTable(
        (doc.words("teacher"), *doc.figures("steps", "loss", "held out", "change", "took")), rows
    )


def _beside(name: str, both: Beside, write: Callable[[float], str]) -> tuple[doc.Cell, ...]:
    measured, predicted = both.measured, both.predicted
    off = quantity.change(predicted / measured - 1, 0) if measured and predicted else ""
    return (name, *(None if one is None else write(one) for one in (measured, predicted)), off)


def goodput_line(goodput: Goodput) -> str:
    """Where the wall time of all starts went, largest part first.

    >>> parts = dict.fromkeys(Goodput.__struct_fields__, 0.0) | {"restarts": 1, "rollbacks": 0}
    >>> parts |= {"wall_seconds": 100.0, "productive_seconds": 80.0, "restart_seconds": 20.0}
    >>> goodput_line(Goodput(**parts))
    '80 % of 100 s was progress; restart 20 % (1 restart)'
    """
    wall = goodput.wall_seconds or 1.0
    parts = {
        name.removesuffix("_seconds"): getattr(goodput, name) / wall
        for name in goodput.__struct_fields__
        if name.endswith("_seconds") and name not in {"wall_seconds", "productive_seconds"}
    }
    rest = sorted(parts.items(), key=lambda part: -part[1])
    shown = [f"{name} {quantity.percent(part, 0)}" for name, part in rest if part >= 0.005]
    counts = [
        f"{count} {word}{'' if count == 1 else 's'}"
        for count, word in ((goodput.restarts, "restart"), (goodput.rollbacks, "rollback"))
        if count
    ]
    progress = quantity.percent(goodput.share, 0)
    line = f"{progress} of {quantity.seconds(goodput.wall_seconds)} was progress"
    line += f"; {', '.join(shown)}" if shown else ""
    return line + (f" ({', '.join(counts)})" if counts else "")
