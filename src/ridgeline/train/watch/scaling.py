"""How well a run scales: its tokens per second against those of a run with fewer workers.

    efficiency = (tokens/s of this run / tokens/s of the reference) / (workers / its workers)

Strong scaling keeps the global batch, so each worker has less to do and communication weighs more
(Amdahl 1967); weak scaling keeps the work of each worker (Gustafson 1988). Which one it is follows
from the two recipes, and runs that differ in what they train are refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import Literal

from ridgeline.errors import InputError
from ridgeline.records.recipe import Recipe
from ridgeline.records.training_run import TrainingRun

_WARM_UP_SHARE = 0.2
"""The share of steps left out at the start, while caches fill and kernels are compiled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunScaling:
    """The speed of one run beside that of another."""

    kind: Literal["strong", "weak"]
    workers: int
    reference_workers: int
    tokens_per_second: float
    reference_tokens_per_second: float

    @property
    def speedup(self) -> float:
        """This run's speed over the reference's."""
        return self.tokens_per_second / self.reference_tokens_per_second

    @property
    def efficiency(self) -> float:
        """The speedup for each added worker; at 1 each adds as much as the first gave."""
        return self.speedup * self.reference_workers / self.workers


def scaling(run: TrainingRun, reference: TrainingRun) -> RunScaling:
    """Compare a run with one of fewer workers.

    Raises:
        InputError: They train different things, or neither the global batch nor the batch of a
            worker is the same.
    """
    _check_same_work(run.recipe, reference.recipe)
    batch, before = (one.recipe.layout.global_batch for one in (run, reference))
    if batch == before:
        kind: Literal["strong", "weak"] = "strong"
    elif batch * reference.processes == before * run.processes:
        kind = "weak"
    else:
        raise InputError(
            f"scaling: global batches of {batch} on {run.processes} workers and {before} on"
            f" {reference.processes} are neither equal (strong scaling) nor equal per worker (weak)"
        )
    return RunScaling(
        kind=kind,
        workers=run.processes,
        reference_workers=reference.processes,
        tokens_per_second=_speed(run),
        reference_tokens_per_second=_speed(reference),
    )


def scaling_line(run: TrainingRun, reference: TrainingRun) -> str:
    """What `scaling` finds, in one line."""
    found = scaling(run, reference)
    return (
        f"{found.kind} scaling: {found.speedup:.2f} times the speed of {found.reference_workers} on"
        f" {found.workers} processes, efficiency {found.efficiency:.0%}"
    )


def _speed(run: TrainingRun) -> float:
    """Tokens, or images, per second of the median step after warm-up."""
    samples = run.step_samples[int(len(run.step_samples) * _WARM_UP_SHARE) :]
    if not samples:
        raise InputError("scaling: a run without steps has no speed")
    data = run.recipe.data
    each = 1 if data is None else data.seq
    return run.recipe.layout.global_batch * each / median(samples)


def _check_same_work(one: Recipe, other: Recipe) -> None:
    pairs = {
        "model.config": (one.model.config, other.model.config),
        "data.seq": tuple(None if each.data is None else each.data.seq for each in (one, other)),
        "images.size": tuple(
            None if each.images is None else each.images.size for each in (one, other)
        ),
        "layout.precision": (one.layout.precision, other.layout.precision),
        "optimizer.name": (one.optimizer.name, other.optimizer.name),
    }
    for key, (mine, theirs) in pairs.items():
        if mine != theirs:
            raise InputError(
                f"scaling: the runs differ in {key} ({mine} and {theirs}); compare runs that train"
                " the same"
            )
