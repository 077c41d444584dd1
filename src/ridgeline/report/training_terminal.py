"""A training run in the terminal: while it goes, drawn from its journal, and when it is done."""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from rich import box
from rich.console import Group, RenderableType
from rich.text import Text

from ridgeline import quantity
from ridgeline.errors import InputError
from ridgeline.records.journal import Tail, read_journal
from ridgeline.records.recipe_file import read_recipe
from ridgeline.records.training_run import Beside, Goodput, LoggedStep, TrainingRun
from ridgeline.report.fitted_table import FittedTable
from ridgeline.report.terminal import PHASE_COLORS

_LEVELS = "▁▂▃▄▅▆▇█"
_CURVE_COLUMNS = 60
_BAR_COLUMNS = 40
_FILLS = {
    "data": "d",
    "forward": "f",
    "backward": "b",
    "communication": "c",
    "optimizer": "o",
    "other": "·",
}


class LiveView:
    """Says how a run stands whenever its journal has grown."""

    def __init__(
        self, folder: Path, say: Callable[[str], None], *, pictures: bool | None = None
    ) -> None:
        """Of the run in `folder`.

        Args:
            folder: Where the run lives.
            say: Shows a text in place of the one before.
            pictures: Add the loss curve and the phases below the line; None: on a terminal.
        """
        self._folder = folder
        self._say = say
        self._pictures = sys.stderr.isatty() if pictures is None else pictures
        self._tail = Tail(folder)
        self._lines: list[LoggedStep] = []
        self._steps: int | None = None

    def refresh(self) -> None:
        """Look at the journal; says nothing where there is nothing new."""
        new = self._tail.read()
        if not new:
            return
        if self._steps is None:
            self._steps = _steps_wanted(self._folder)
        self._lines = [one for one in self._lines if one.step < new[0].step] + new
        text = live_line(self._lines[-1], self._steps)
        if self._pictures:
            text += "\n" + "\n".join(live_pictures(self._lines))
        self._say(text)


def _steps_wanted(folder: Path) -> int | None:
    try:
        return read_recipe(folder / "recipe.toml").steps
    except InputError:
        # The view is no place to fail: the run itself has read its recipe.
        return None


def live_line(line: LoggedStep, steps: int | None) -> str:
    """The newest logged step in one line."""
    parts = [f"step {line.step:,}" + (f" of {steps:,}" if steps else "")]
    parts.append(f"loss {line.loss:.4f}")
    if line.validation_loss is not None:
        parts.append(f"held out {line.validation_loss:.4f}")
    parts.append(quantity.scaled(line.tokens_per_second, "tokens/s"))
    if line.mfu is not None:
        parts.append(f"MFU {line.mfu:.1%}")
    parts.append(f"peak {quantity.memory(line.peak_memory_bytes)}")
    if line.skipped_steps:
        parts.append(f"{line.skipped_steps} skipped")
    if steps and steps > line.step:
        parts.append(f"{quantity.seconds((steps - line.step) * line.step_seconds)} left")
    if line.straggler:
        parts.append(line.straggler)
    return " · ".join(parts)


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
    'ffbbbbbb forward 25%, backward 75%'
    """
    total = sum(phases.values()) or 1.0
    ends, so_far = [], 0.0
    for seconds in phases.values():
        so_far += seconds
        ends.append(round(columns * so_far / total))
    starts = [0, *ends[:-1]]
    bar = "".join(
        _FILLS.get(name, name[0]) * (end - start)
        for name, start, end in zip(phases, starts, ends, strict=True)
    )
    shares = [f"{name} {s / total:.0%}" for name, s in phases.items() if s / total >= 0.005]
    return f"{bar} {', '.join(shares)}"


def run_view(run: TrainingRun, folder: Path) -> RenderableType:
    """What a run did: loss, speed and memory beside what was predicted, where the time went."""
    parts: list[RenderableType] = [_headline(run)]
    if run.stopped:
        parts.append(Text(f"It ended early: {run.stopped}", style="yellow"))
    losses = [line.loss for line in read_journal(folder)]
    if len(losses) > 1:
        parts.append(Text(f"loss {losses[0]:.3f} {curve(losses)} {losses[-1]:.3f}"))
    parts += [_figures(run), _phases(run.phases)]
    if run.goodput is not None:
        parts.append(Text(goodput_line(run.goodput)))
    parts += [Text(note, style="yellow") for note in run.notes]
    parts.append(Text(f"Everything is in {folder}", style="dim"))
    return Group(*parts)


def goodput_line(goodput: Goodput) -> str:
    """Where the wall time of all starts went, largest part first.

    >>> parts = dict.fromkeys(Goodput.__struct_fields__, 0.0) | {"restarts": 1, "rollbacks": 0}
    >>> parts |= {"wall_seconds": 100.0, "productive_seconds": 80.0, "restart_seconds": 20.0}
    >>> goodput_line(Goodput(**parts))
    '80% of 100 s was progress; restart 20% (1 restart)'
    """
    wall = goodput.wall_seconds or 1.0
    parts = {
        name.removesuffix("_seconds"): getattr(goodput, name) / wall
        for name in goodput.__struct_fields__
        if name.endswith("_seconds") and name not in {"wall_seconds", "productive_seconds"}
    }
    rest = [f"{name} {part:.0%}" for name, part in sorted(parts.items(), key=lambda p: -p[1])]
    shown = [text for text in rest if not text.endswith(" 0%")]
    counts = [
        f"{count} {word}{'' if count == 1 else 's'}"
        for count, word in ((goodput.restarts, "restart"), (goodput.rollbacks, "rollback"))
        if count
    ]
    line = f"{goodput.share:.0%} of {quantity.seconds(goodput.wall_seconds)} was progress"
    line += f"; {', '.join(shown)}" if shown else ""
    return line + (f" ({', '.join(counts)})" if counts else "")


def _headline(run: TrainingRun) -> Text:
    many = "process" if run.processes == 1 else "processes"
    loss = "no finite loss" if run.final_loss is None else f"loss {run.final_loss:.4f}"
    text = Text(loss, style="bold")
    if run.validation_loss is not None and math.isfinite(run.validation_loss):
        perplexity = quantity.digits(math.exp(min(run.validation_loss, 700.0)))
        text.append(f", held out {run.validation_loss:.4f} (perplexity {perplexity})")
    text.append(
        f" after {run.steps:,} steps and {run.tokens:,} tokens, in"
        f" {quantity.seconds(run.wall_seconds)} on {run.processes} {many}",
        style="not bold",
    )
    return text


def _figures(run: TrainingRun) -> FittedTable:
    table = FittedTable(box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False)
    table.add_column("")
    for name in ("measured", "predicted", "off by"):
        table.add_column(name, justify="right")
    table.add_row("tokens per second", quantity.scaled(run.tokens_per_second, ""), "", "")
    if run.mfu is not None:
        table.add_row("MFU", f"{run.mfu:.1%}", "", "")
    _beside(table, "step", run.step_seconds, quantity.seconds)
    _beside(table, "peak memory, worst rank", run.peak_memory_bytes, quantity.memory)
    if run.bytes_sent is not None:
        table.add_row("sent per step and rank", quantity.memory(run.bytes_sent), "", "")
    if run.skipped_steps:
        table.add_row("steps skipped (overflow)", f"{run.skipped_steps:,}", "", "")
    trained = f"{run.trainable_parameters:,} of {run.parameters:,}"
    table.add_row("parameters trained", trained, "", "")
    return table


def _beside(table: FittedTable, name: str, both: Beside, write: Callable[[float], str]) -> None:
    measured, predicted = both.measured, both.predicted
    off = f"{predicted / measured - 1:+.0%}" if measured and predicted else ""
    cells = ["–" if value is None else write(value) for value in (measured, predicted)]
    table.add_row(name, *cells, off)


def _phases(phases: Mapping[str, float]) -> Text:
    """Where a step's time went, as one bar."""
    total = sum(phases.values())
    if not total:
        return Text()
    bar, words = phase_bar(phases).split(" ", 1)
    text = Text(f"step {quantity.seconds(total)} ")
    letters = {letter: name for name, letter in _FILLS.items()}
    for letter in bar:
        text.append(letter, style=PHASE_COLORS.get(letters.get(letter, ""), ""))
    return text.append(f" {words}")
