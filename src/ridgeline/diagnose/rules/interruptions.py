"""What interrupts training so often that it waits: checkpoints written, the model evaluated.

A forward without gradients of a model in training mode is hardly an evaluation: an agent acts, a
teacher or a target network is asked. To do that less often would be another training.

What was met in a single step of those that were timed tells how long it takes, and not how often
it comes: a run of a thousand steps may evaluate once, and a window of two steps may hold that one.
"""

from __future__ import annotations

from ridgeline.diagnose.reading import Reading, duration, percent
from ridgeline.records import Finding

CAUSES = ("frequent-evaluation", "no-grad-forwards", "save-in-loop")

_USUAL_SHARE = 0.1
"""Evaluation that takes a tenth of the run is nothing to remark on."""
_FEW_FORWARDS = 4
"""Forwards without gradients per training step: more of them, and the model may be an agent's."""
_ONE_STEP_HOLDS = 0.9
"""One step holds an evaluation as a whole where it spent this share of the time of all of them."""
_ONCE_CONFIDENCE = 0.4
_ACTING = " If it is an agent that acts: ask for many inputs in one call."


def find(reading: Reading) -> list[Finding]:
    """Find time in `torch.save`, and in forwards without gradients beyond a usual share."""
    return [*_evaluation(reading), *_saving(reading)]


def _evaluation(reading: Reading) -> list[Finding]:
    """Time in forwards without gradients, beyond a usual share."""
    evaluation = reading.profile.habit("evaluation")
    seconds = reading.of_mean(evaluation.seconds)
    if reading.profile.kind != "training" or reading.share(seconds) <= _USUAL_SHARE:
        return []
    asked = reading.profile.habit("no_grad_in_training").calls
    if asked > 0.5 * evaluation.calls:
        return _asking(reading, seconds)
    steps = reading.profile.steps
    once = _is_in_one_step(reading)
    return reading.finding(
        "frequent-evaluation",
        touched_seconds=seconds,
        saves_seconds=((0.0 if once else 0.5) * seconds, 0.9 * seconds),
        confidence=_ONCE_CONFIDENCE if once else 0.75,
        summary=f"An evaluation of {duration(steps * evaluation.seconds)} ran in one of "
        f"{_steps_seen(steps)}, {percent(reading.share(seconds))} of their time; what it costs "
        "a whole run depends on how often it comes."
        if once
        else f"Evaluation takes {percent(reading.share(seconds))} of the time: "
        f"{evaluation.calls:.3g} forwards without gradients per training step.",
        evidence={
            "evaluation_seconds": evaluation.seconds,
            "evaluations_per_step": evaluation.calls,
        },
        where=[evaluation.site],
        cure="Evaluate less often, or on a part of the validation set, or with a larger batch."
        + (_ACTING if evaluation.calls > _FEW_FORWARDS else ""),
        effort="flag",
    )


def _is_in_one_step(reading: Reading) -> bool:
    """Was all evaluation inside one of the timed steps?"""
    profile = reading.profile
    evaluated = profile.steps * profile.habit("evaluation").seconds
    other = profile.phases.get("other")
    return other is not None and other.max >= _ONE_STEP_HOLDS * evaluated


def _steps_seen(steps: int) -> str:
    return "the only step that was timed" if steps == 1 else f"the {steps} steps that were timed"


def _asking(reading: Reading, seconds: float) -> list[Finding]:
    """Time in forwards without gradients of models that are in training mode."""
    evaluation = reading.profile.habit("evaluation")
    return reading.finding(
        "no-grad-forwards",
        touched_seconds=seconds,
        saves_seconds=(0.1 * seconds, 0.8 * seconds),
        confidence=0.6,
        summary=f"Forwards without gradients take {percent(reading.share(seconds))} of the time, "
        f"{evaluation.calls:.3g} per training step, of models in training mode: an agent that "
        "acts, a teacher, a target network.",
        evidence={"no_grad_seconds": evaluation.seconds, "no_grad_per_step": evaluation.calls},
        where=[evaluation.site],
        cure="Ask for many inputs in one call (more environments side by side), or keep what a "
        "fixed teacher answers; call `model.eval()` where it is an evaluation.",
        effort="code",
    )


def _saving(reading: Reading) -> list[Finding]:
    """Time in `torch.save`, as a mean over the timed steps."""
    save = reading.profile.habit("save")
    seconds = reading.of_mean(save.seconds)
    if seconds <= 0:
        return []
    steps = reading.profile.steps
    once = save.calls * steps < 1.5
    return reading.finding(
        "save-in-loop",
        touched_seconds=seconds,
        saves_seconds=((0.0 if once else 0.6) * seconds, seconds),
        confidence=_ONCE_CONFIDENCE if once else 0.9,
        summary=f"torch.save took {duration(steps * save.seconds)}, once in {_steps_seen(steps)}, "
        f"{percent(reading.share(seconds))} of their time; what it costs a whole run depends on "
        "how often it comes."
        if once
        else f"torch.save takes {duration(save.seconds)} per step, "
        f"{percent(reading.share(seconds))} of it.",
        evidence={"save_seconds": save.seconds},
        where=[save.site],
        cure="Save every so many minutes instead of every so few steps, or copy the state and "
        "write it in a thread of its own.",
        effort="line",
    )
