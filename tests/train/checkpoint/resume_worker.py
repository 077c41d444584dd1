"""What each rank of the resume tests runs: one run straight through, one that is taken up again."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from ridgeline.records.recipe import Recipe
from ridgeline.train.build import build
from ridgeline.train.checkpoint.saver import Saver
from ridgeline.train.checkpoint.state import RunState
from ridgeline.train.data.loader import Loader, validation_batches
from ridgeline.train.data.preparation import prepare
from ridgeline.train.images.task import image_classification
from ridgeline.train.loop import Trainer
from ridgeline.train.optimizers.build import named_parameters
from ridgeline.train.ranks import Ranks, join, leave
from ridgeline.train.task import LearningTask
from ridgeline.train.watch.interval import LogInterval, PeakMemory
from ridgeline.train.watch.profiler_windows import ProfilerWindows


def _task(recipe: Recipe, tokens: Path, ranks: Ranks) -> LearningTask:
    if recipe.images is not None:
        return image_classification(recipe, ranks, lambda _: None)
    prepared = prepare(recipe, tokens, lambda _: None)
    return LearningTask(
        recipe=recipe,
        feed=Loader(prepared, recipe, ranks),
        held_out=partial(validation_batches, prepared, recipe, ranks),
        save=lambda *_: None,
    )


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Of one start of a run."""

    began: int
    """The step it went on from."""
    losses: list[float]
    tokens: int
    weights: dict[str, Tensor]
    """Whole, of what this rank has."""
    notes: list[str]


def start(
    recipe: Recipe,
    folder: Path,
    ranks: Ranks,
    stop_at: int = 0,
    at_step: Callable[[int, Saver], None] = lambda _, __: None,
) -> Outcome:
    """A start as the session makes it, to the last step or to `stop_at`."""
    losses: list[float] = []
    notes: list[str] = []
    torch.manual_seed(recipe.run.seed)
    task = _task(recipe, folder.parent / f"tokens{ranks.rank}", ranks)
    recipe, loader = task.recipe, task.feed
    interval = LogInterval(ranks, None, None)
    built = build(recipe, ranks, interval.phases)
    trainer = Trainer(
        recipe=recipe,
        ranks=ranks,
        built=built,
        loader=loader,
        held_out=task.held_out,
        steps=recipe.steps or 0,
        interval=interval,
        windows=ProfilerWindows(folder / "traces", (), ranks.rank, ranks.device),
        memory=PeakMemory(ranks.device),
        log=lambda line: losses.append(line.loss),
    )

    def stop() -> str:
        at_step(trainer.course.step, saver)
        return "asked" if trainer.course.step == stop_at else ""

    trainer.stop = stop
    state = RunState(built=built, loader=loader, ranks=ranks)
    saver = Saver(recipe, folder, ranks, state, notes.append)
    found = saver.load_newest()
    if found is not None:
        trainer.course.step, trainer.course.tokens = found.step, found.tokens
    began = trainer.course.step
    trainer.saver = saver
    trainer.run()
    loader.close()
    saver.close()
    return Outcome(
        began=began,
        losses=losses,
        tokens=trainer.course.tokens,
        weights={name: _whole(one) for name, one in named_parameters(built.passes.modules)},
        notes=notes,
    )


def resumed(argument: dict[str, Any]) -> dict[str, tuple[Outcome, Outcome, Outcome]]:
    """Each case straight through, up to a step, and taken up again in a process that forgot."""
    torch.set_num_threads(1)
    outcomes = {}
    for name, recipe in argument["cases"].items():
        ranks = join(recipe.layout, timeout_seconds=60)
        folder = Path(argument["folder"]) / name
        straight = start(recipe, folder / "straight", ranks)
        first = start(recipe, folder / "halved", ranks, stop_at=argument["stop_at"])
        _forget()
        second = start(recipe, folder / "halved", ranks)
        outcomes[name] = (straight, first, second)
    leave()
    return outcomes


def chained(argument: dict[str, Any]) -> dict[str, Outcome]:
    """Cases that go on from what other numbers of ranks left in their folders."""
    torch.set_num_threads(1)
    outcomes = {}
    for name, recipe in argument["cases"].items():
        ranks = join(recipe.layout, timeout_seconds=60)
        outcomes[name] = start(recipe, Path(argument["folder"]) / name / "run", ranks)
    leave()
    return outcomes


def _forget() -> None:
    """What a new process would not have: the random generators' states."""
    torch.manual_seed(991)
    np.random.seed(992)  # noqa: NPY002
    random.seed(993)


def _whole(tensor: Tensor) -> Tensor:
    tensor = tensor.detach()
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).clone()


def with_a_full_disk(argument: dict[str, Any]) -> tuple[Outcome, list[list[int]]]:
    """Files may not grow beyond some bytes for a while: what a full disk looks like from here."""
    import resource

    from ridgeline.train.checkpoint.store import Store

    torch.set_num_threads(1)
    recipe, folder = argument["recipe"], Path(argument["folder"]) / "run"
    ranks = join(recipe.layout, timeout_seconds=60)
    seen: list[list[int]] = []

    def limit(step: int, saver: Saver) -> None:
        first, last = argument["full"]
        if step == last:
            saver.wait()  # a slow machine must not write after the disk has room again
        seen.append([one.step for one in Store(folder).whole()])
        if step in (first, last) and ranks.rank == argument["rank"]:
            most = argument["bytes"] if step == first else resource.RLIM_INFINITY
            resource.setrlimit(resource.RLIMIT_FSIZE, (most, resource.RLIM_INFINITY))

    outcome = start(recipe, folder, ranks, at_step=limit)
    leave()
    return outcome, seen
