"""What each of several teachers taught, from the log of the run."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ridgeline.records.recipe import Recipe
from ridgeline.records.training_run import LoggedStep, TaughtStage


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
