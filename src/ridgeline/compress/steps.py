"""From a model directory to compressed ones: one per scheme, each with all schemes up to it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from ridgeline.compress.memory import forecast
from ridgeline.compress.pruning.ahead import importance_of, shares_in_layers
from ridgeline.compress.pruning.structured.neurons import MULTIPLE
from ridgeline.compress.pruning.structured.take_out import take_out
from ridgeline.compress.run import BlockDone, Job, stage
from ridgeline.records.scheme import Scheme

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One of them."""

    scheme: str
    directory: Path
    seconds: float
    """That it took; 0 where an earlier run had made it."""
    notices: tuple[str, ...] = ()


def steps(
    given: Path, schemes: Sequence[Scheme], work: Path, tokens: Tensor | None, say: Say
) -> list[Step]:
    """Apply schemes in order.

    What takes neurons, heads or layers out makes a new dense model, which the schemes after it
    start from; others are applied block by block, together with those before them.

    Args:
        given: The model.
        schemes: In order.
        work: Folder for the directories; those that are there already are not made again.
        tokens: Of calibration.
        say: Told what is under way.

    Raises:
        InputError: The model's files cannot be read, or a scheme does not fit it.
    """
    made: list[Step] = []
    start = given
    together: list[Scheme] = []
    for count, scheme in enumerate(schemes, start=1):
        directory = work / f"row-{count}"
        if scheme.pruning is not None and scheme.pruning.structure != "weights":
            began = time.monotonic()
            if not directory.exists():
                say(f"{scheme.name}: choosing what to take out")
                before = made[-1].directory if made else given
                multiple = _multiple(schemes[count:])
                take_out(before, scheme.pruning, directory, tokens, multiple=multiple)
            made.append(
                Step(scheme=scheme.name, directory=directory, seconds=time.monotonic() - began)
            )
            start, together = directory, []
            continue
        together = [*together, scheme]
        importance = importance_of(start, together, tokens)
        job = Job(
            model=start,
            schemes=tuple(together),
            work=directory.with_name(f"{directory.name}.blocks"),
            tokens=tokens,
            importance=importance,
            of_layer=shares_in_layers(start, tuple(together), importance),
        )
        seconds, notices = saved(job, directory, scheme.name, say)
        made.append(Step(scheme=scheme.name, directory=directory, seconds=seconds, notices=notices))
    return made


def _multiple(later: Sequence[Scheme]) -> int:
    """Of the widths that schemes can round in their groups."""
    groups = [scheme.weights.group or 1 for scheme in later if scheme.weights is not None]
    return math.lcm(MULTIPLE, *groups)


def saved(job: Job, directory: Path, name: str, say: Say) -> tuple[float, tuple[str, ...]]:
    """Compress, unless an earlier run has; returns seconds and notices.

    Args:
        job: What to do.
        directory: Where to save.
        name: For progress.
        say: Told what is under way.

    Raises:
        InputError: As `stage` says.
    """
    if directory.exists():
        return 0.0, ()
    began = time.monotonic()
    megabytes = max(1.0, forecast(job).peak_bytes / 1e6)
    say(f"{name}: about {megabytes:,.0f} MB of memory are needed")

    def progress(done: BlockDone) -> None:
        say(f"{name}: block {done.block + 1} of {done.num_blocks}")

    staged = stage(job, progress)
    staged.save(directory)
    notices = tuple(
        f"{layer.name}: {notice}" for layer in staged.layers for notice in layer.notices
    )
    return time.monotonic() - began, notices
