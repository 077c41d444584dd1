"""The gain of guesses for one replica's decoding, from the times of its steps.

A step that checks guesses reads weights and cache once for all of them, but multiplies and samples
for each. How many hold is said by whoever asks; `estimate.py` and `plan.py` put them into the load
itself, here is what they gain a replica that has so many sequences running.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ridgeline.batching.draft_tree import MOST_NODES
from ridgeline.cost.serving.clock import clock_of
from ridgeline.cost.serving.draft_trees import best_draft_tree, tree_speedup
from ridgeline.cost.serving.speculation import Forecast, forecast
from ridgeline.errors import InputError
from ridgeline.models.spec import ModelSpec
from ridgeline.plan.serving.coefficients import Calibration, read_calibration
from ridgeline.plan.serving.estimate import arrays_of
from ridgeline.plan.serving.question import ServingQuestion
from ridgeline.plan.simulate.drafting import Drafting
from ridgeline.records.serving_plan import Speculation

MOST = 32
"""Drafts per step among which the best number is sought."""


def speculation_gain(
    replica: ServingQuestion,
    *,
    running: float,
    num_drafts: int,
    acceptance: float,
    draft: ModelSpec | None = None,
    cost: float = 0.0,
    calibration: Calibration | None = None,
) -> Forecast:
    """The gain per token of decoding, from acceptance, drafts, and the times of steps.

    The drafting model's steps are extrapolated to its size: it is far smaller than any model that
    the fit saw.

    Args:
        replica: As for `estimate_serving`.
        running: Sequences that decode at once.
        num_drafts: Per sequence and step.
        acceptance: Chance that a draft which is looked at is accepted.
        draft: What drafts, on the same devices; None: `cost` says what a draft takes.
        cost: Time of a draft for all, over that of a plain step; 0: nothing (prompt look-up).
        calibration: None: the shipped one.

    Raises:
        InputError: When acceptance or the number of drafts is out of range.
    """
    if num_drafts < 1 or not 0.0 <= acceptance <= 1.0:
        raise InputError("--drafts must be 1 or more and --acceptance between 0 and 1")
    known = calibration or read_calibration()
    checking = _checking(replica, running, known)
    drafting = cost * checking(0)
    if draft is not None:
        drafting = _checking(replace(replica, model=draft, kept=None), running, known)(0)

    def of(drafts: int) -> Forecast:
        return forecast(
            acceptance=acceptance,
            num_drafts=drafts,
            draft_seconds=drafting,
            step_seconds=checking(0),
            checking_step_seconds=checking(drafts),
        )

    best = max((of(drafts) for drafts in range(1, MOST + 1)), key=lambda one: one.speedup)
    return replace(of(num_drafts), best_num_drafts=best.num_drafts if best.speedup > 1.0 else 0)


def tree_gain(
    replica: ServingQuestion,
    *,
    running: float,
    num_nodes: int,
    accuracies: tuple[tuple[float, ...], ...],
    cost: float = 0.0,
    calibration: Calibration | None = None,
) -> Forecast:
    """The gain per token of decoding from a tree of guesses.

    Args:
        replica: As for `estimate_serving`.
        running: Sequences that decode at once.
        num_nodes: Guesses of each sequence that a step checks.
        accuracies: By place, by rank: how often the guess of that rank is the model's token.
        cost: Time of guessing one place for all, over that of a plain step.
        calibration: None: the shipped one.
    """
    known = calibration or read_calibration()
    checking = _checking(replica, running, known)

    def of(asked: int) -> Forecast:
        tree = best_draft_tree(accuracies, asked)
        count = len(tree.nodes)
        return Forecast(
            acceptance=(tree.tokens_per_round - 1.0) / max(count, 1),
            num_drafts=count,
            tokens_per_step=tree.tokens_per_round,
            speedup=tree_speedup(
                accuracies,
                asked,
                draft_seconds=cost * tree.depth * checking(0),
                target_seconds=checking(0),
                check_factor=checking(count) / checking(0),
            ),
            best_num_drafts=0,
        )

    best = max((of(nodes) for nodes in range(1, MOST_NODES + 1)), key=lambda one: one.speedup)
    asked = of(num_nodes)
    return replace(asked, best_num_drafts=best.num_drafts if best.speedup > 1.0 else 0)


def speculation_of(
    replica: ServingQuestion,
    drafting: Drafting,
    *,
    running: float,
    calibration: Calibration | None = None,
) -> Speculation:
    """What guesses gain the decoding of a replica that has so many sequences running."""
    if drafting.nodes:
        gain = tree_gain(
            replica,
            running=running,
            num_nodes=drafting.num_drafts,
            accuracies=drafting.accuracies,
            cost=drafting.cost,
            calibration=calibration,
        )
    else:
        gain = speculation_gain(
            replica,
            running=running,
            num_drafts=drafting.num_drafts,
            acceptance=drafting.accuracies[0][0],
            cost=drafting.cost,
            calibration=calibration,
        )
    return Speculation(
        draft="",
        num_drafts=gain.num_drafts,
        acceptance=gain.acceptance,
        tokens_per_step=gain.tokens_per_step,
        speedup=gain.speedup,
        best_num_drafts=gain.best_num_drafts,
        tree_depth=drafting.depth if drafting.nodes else None,
    )


def _checking(
    replica: ServingQuestion, running: float, calibration: Calibration
) -> Callable[[int], float]:
    """Seconds of a step that checks so many guesses of each running sequence."""
    count = max(round(running), 1)
    context = round(count * (replica.prompt + replica.completion / 2.0))
    arrays = arrays_of([replica], calibration)
    clock = clock_of(arrays.hosted, arrays.rates)
    return lambda drafts: clock(decodes=count * (drafts + 1), decode_context=context)
