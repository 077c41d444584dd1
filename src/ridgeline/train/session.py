"""The run of one rank from start to end: join, prepare, build, train, save, leave."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING

import torch

from ridgeline.errors import InputError
from ridgeline.hardware.environment import environment
from ridgeline.measure.device_name import device_name
from ridgeline.records.recipe import Recipe
from ridgeline.records.store import write_record
from ridgeline.records.training_run import Beside, LoggedStep, TaughtStage, TrainingRun, read_log
from ridgeline.train.adapters import save_adapter
from ridgeline.train.build import build
from ridgeline.train.checkpoint.saver import Saver
from ridgeline.train.checkpoint.state import RunState
from ridgeline.train.folder import ADAPTER, MODEL, RESULT, TRACES
from ridgeline.train.loop import Trainer
from ridgeline.train.ranks import Ranks, compute_alone, join, leave
from ridgeline.train.survive.guard import RollBack
from ridgeline.train.survive.vigil import TERMINATED_EXIT_CODE, Vigil, end_if_hung, vigil
from ridgeline.train.watch.devices import USUAL_SECONDS, DeviceWatch
from ridgeline.train.watch.expected import (
    flops_per_token,
    peak_flops_per_second,
    predicted_peak_bytes,
)
from ridgeline.train.watch.interval import LogInterval, PeakMemory, TrainingLog
from ridgeline.train.watch.profiler_windows import ProfilerWindows

if TYPE_CHECKING:
    from ridgeline.train.task import LearningTask


def train_as_rank(recipe: Recipe, folder: Path) -> int:
    """Run a recipe as the rank that the environment says this process is; its exit code."""
    compute_alone()
    ranks = join(recipe.layout, backend=recipe.communication.backend)
    try:
        with vigil(recipe, folder, ranks) as keeper:
            _train(recipe, folder, ranks, keeper)
        return TERMINATED_EXIT_CODE if keeper.request.signalled else 0
    finally:
        leave()


def _train(recipe: Recipe, folder: Path, ranks: Ranks, keeper: Vigil) -> None:
    task = _task(recipe, folder, ranks)
    recipe = task.recipe
    torch.manual_seed(recipe.run.seed)
    memory = PeakMemory(ranks.device)
    interval = LogInterval(
        ranks, flops_per_token(recipe), peak_flops_per_second(recipe, ranks.device)
    )
    built = build(recipe, ranks, interval.phases)
    log = TrainingLog(folder, _device_watch(recipe, ranks)) if ranks.rank == 0 else None
    windows = ProfilerWindows(
        folder / TRACES,
        recipe.run.profile_steps,
        ranks.rank,
        ranks.device,
        every=recipe.run.profile_every,
        keep=recipe.run.profile_keep,
    )
    trainer = Trainer(
        recipe=recipe,
        ranks=ranks,
        built=built,
        loader=task.feed,
        held_out=task.held_out,
        steps=_steps(recipe),
        interval=interval,
        windows=windows,
        memory=memory,
        log=log.write if log else _nothing,
        stop=lambda: keeper.guard.stop,
        guard=keeper.guard,
        events=keeper.events,
    )
    _go_on(trainer, keeper, folder)
    started = perf_counter()
    with end_if_hung(keeper, trainer, recipe, ranks):
        try:
            course = trainer.run()
        except RollBack:
            # Every rank goes back after the same step: the save under way can be finished.
            assert trainer.saver is not None
            trainer.saver.wait()
            raise
    wall_seconds = perf_counter() - started
    windows.close()
    task.feed.close()
    if trainer.saver is not None:
        trainer.saver.close()
    if not course.stopped:
        _export(trainer, task, folder)
    if log:
        log.close()
        result = _result(trainer, wall_seconds, keeper, read_log(folder))
        write_record(folder / RESULT, result)


def _device_watch(recipe: Recipe, ranks: Ranks) -> DeviceWatch | None:
    """Who looks at the GPUs beside the training; None: nobody was asked to."""
    usual = USUAL_SECONDS if ranks.device.type == "cuda" else 0.0
    given = recipe.run.sample_gpus_seconds
    period = usual if given is None else given
    return DeviceWatch(period) if period else None


def _go_on(trainer: Trainer, keeper: Vigil, folder: Path) -> None:
    """Make the run's checkpoints, and go on from the newest good one, if there is one."""
    recipe, ranks, course = trainer.recipe, trainer.ranks, trainer.course
    notes: list[str] = []
    ready = False

    def note(text: str) -> None:
        _tell(text)
        if not ready:
            notes.append(text)
        elif keeper.events is not None:
            keeper.events.write("checkpoint", course.step, text)

    state = RunState(built=trainer.built, loader=trainer.loader, ranks=ranks)
    saver = Saver(recipe, folder, ranks, state, note)
    found = saver.load_newest()
    if found is not None:
        course.step, course.tokens = found.step, found.tokens
        lines = [line for line in read_log(folder) if line.step <= found.step]
        if lines:
            course.last_line = lines[-1]
            course.validation_loss = lines[-1].validation_loss
            course.top1 = lines[-1].top1
    trainer.saver = saver
    ready = True
    if keeper.events is not None:
        keeper.events.write("ready", course.step, "; ".join(notes))


def _export(trainer: Trainer, task: LearningTask, folder: Path) -> None:
    """The model as transformers and peft load it."""
    recipe, built = trainer.recipe, trainer.built
    if recipe.adapter is not None:
        (part,) = built.passes.modules
        save_adapter(part, folder / ADAPTER, trainer.ranks)
        return
    with ExitStack() as stack:
        for part in built.parts if task.saves_what_is_judged else ():
            stack.enter_context(part.around_evaluation())
        task.save(built.passes.modules, folder / MODEL)


def _result(
    trainer: Trainer, wall_seconds: float, keeper: Vigil, log: Sequence[LoggedStep]
) -> TrainingRun:
    recipe, ranks, built, course = trainer.recipe, trainer.ranks, trainer.built, trainer.course
    said = recipe.prediction
    middle = median(course.step_samples) if course.step_samples else None
    last = course.last_line
    totals, steps = trainer.interval.totals, max(1, len(course.step_samples))
    return TrainingRun(
        recipe=recipe,
        environment=environment(device=device_name(ranks.device)),
        processes=ranks.world,
        steps=course.step,
        tokens=course.tokens,
        parameters=built.parameters,
        trainable_parameters=built.trainable_parameters,
        wall_seconds=wall_seconds,
        step_samples=course.step_samples,
        tokens_per_second=last.tokens_per_second if last else 0.0,
        mfu=last.mfu if last else None,
        final_loss=last.loss if last and math.isfinite(last.loss) else None,
        validation_loss=course.validation_loss,
        top1=course.top1,
        phases={name: seconds / steps for name, seconds in totals.items()},
        step_seconds=Beside(predicted=said.step_seconds if said else None, measured=middle),
        peak_memory_bytes=Beside(
            predicted=said.peak_bytes if said else predicted_peak_bytes(recipe),
            measured=last.peak_memory_bytes if last else None,
        ),
        bytes_sent=last.bytes_sent if last else None,
        skipped_steps=built.precision.skipped_steps,
        stopped=course.stopped,
        goodput=keeper.end(course.step, course.stopped),
        teachers=taught_stages(recipe, log),
        notes=keeper.notes(),
    )


def _steps(recipe: Recipe) -> int:
    if recipe.steps is None:
        raise InputError(
            "recipe: neither run.steps nor data.tokens (of images: images.epochs) says how long;"
            " set one"
        )
    return recipe.steps


def _task(recipe: Recipe, folder: Path, ranks: Ranks) -> LearningTask:
    """What the recipe learns, its data ready."""
    if recipe.images is not None:
        from ridgeline.train.images.task import image_classification

        return image_classification(recipe, ranks, _tell)
    from ridgeline.train.language import language_modelling

    return language_modelling(recipe, folder, ranks, _tell)


def _tell(text: str) -> None:
    sys.stderr.write(text + "\n")


def _nothing(_: LoggedStep) -> None:
    return None


def taught_stages(recipe: Recipe, log: Sequence[LoggedStep]) -> tuple[TaughtStage, ...]:
    """The stages of `[[distillation.stages]]` that the log has the end of, in their order.

    Args:
        recipe: Of the run.
        log: Its log; the end of each stage has a line.
    """
    stages = recipe.distillation.stages if recipe.distillation is not None else ()
    found, begin = [], 0
    for stage in stages:
        end = begin + stage.steps
        lines = [line for line in log if begin < line.step <= end]
        if not lines or lines[-1].step != end:
            break
        befores = [begin, *(line.step for line in lines)]
        steps = [line.step - before for line, before in zip(lines, befores, strict=False)]
        loss = lines[-1].loss
        found.append(
            TaughtStage(
                teacher=stage.teacher,
                steps=stage.steps,
                loss=loss if math.isfinite(loss) else None,
                validation_loss=lines[-1].validation_loss,
                seconds=sum(
                    count * line.step_seconds for count, line in zip(steps, lines, strict=True)
                ),
            )
        )
        begin = end
    return tuple(found)
