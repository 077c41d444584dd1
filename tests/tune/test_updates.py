"""Updates that a loss does not tell apart are told by gradients and weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from ridgeline.measure.child.updates import UpdateWatch
from ridgeline.measure.live.conductor import Conductor
from ridgeline.measure.wire import Session, Updates
from ridgeline.tune.updates import WEIGHED_STEPS, update_fault

STEPS = 12
BASE = Updates(norms=[2.0 / (1 + step) for step in range(STEPS)], tensors=[6] * STEPS, short=False)


def changed(factor: float = 1.0, since: int = 0, tensors: int = 6, short: bool = False) -> Updates:
    norms = [norm * (factor if n >= since else 1.0) for n, norm in enumerate(BASE.norms)]
    return Updates(norms=norms, tensors=[tensors] * STEPS, short=short)


@pytest.mark.parametrize(
    ("other", "fault"),
    [
        (changed(), None),
        (changed(1.03), None),
        (changed(0.1), "gradients of steps 0 to 2 part by 2.3 of their norm"),
        (changed(1.5, since=9), "gradients of steps 8 to 11"),
        (changed(tensors=5), "5 parameters have a gradient in step 0; in the baseline 6 have one"),
        (changed(short=True), "the weights themselves are rounded to 16 bits"),
        (changed(float("nan")), "gradients of steps 0 to 2"),
    ],
)
def test_what_optimizers_step_by_tells_a_wrong_training(other: Updates, fault: str | None) -> None:
    found = update_fault("reduced-precision", BASE, other, changed(1.0001))
    assert found is None if fault is None else fault in str(found)
    assert update_fault("statistical", BASE, other, None) is None, "nothing known of other draws"


@pytest.mark.parametrize(
    ("other", "fault"),
    [
        (changed(1.5), None),
        (changed(0.5), "gradients are 0.5 times the baseline's on the whole"),
        (changed(2.0), "gradients are 2 times"),
        (changed(tensors=5), "5 parameters have a gradient; in the baseline 6 have"),
        (changed(float("nan")), "gradients are nan times"),
    ],
)
def test_other_draws_do_not_excuse_other_gradients(other: Updates, fault: str | None) -> None:
    """Accumulation or clipping that was lost hides among batches drawn otherwise."""
    found = update_fault("statistical", BASE, other, None, seeds=[changed(1.1), changed(0.9)])
    assert found is None if fault is None else fault in str(found)
    far = [changed(2.5), changed(0.6)]
    if not fault or "times" in fault:
        assert update_fault("statistical", BASE, changed(0.5), None, seeds=far) is None


def clipped(run: Updates, at: float) -> Updates:
    return Updates(norms=[min(norm, at) for norm in run.norms], tensors=run.tensors, short=False)


def test_clipping_that_other_draws_would_hide_shows_in_steps_of_one_length() -> None:
    """It moves the mean of the norms by less than the seeds do."""
    seeds = [changed(1.1), changed(0.9)]
    added = update_fault("statistical", BASE, clipped(BASE, 0.5), None, seeds=seeds)
    assert added == "gradients are cut to a norm of 0.5; in the baseline they are not"
    cut = [clipped(run, 0.5) for run in (BASE, *seeds)]
    lost = update_fault("statistical", cut[0], changed(0.8), None, seeds=cut[1:])
    assert lost == "gradients are not cut to a norm of 0.5; in the baseline they are"
    assert update_fault("statistical", *cut[:2], None, seeds=cut[2:]) is None, "both are"
    two = clipped(BASE, 1.0)
    assert update_fault("statistical", BASE, two, None, seeds=seeds) is None, "two may by chance"


def test_gradients_that_are_always_of_one_length_are_not_taken_for_clipped() -> None:
    level = Updates(norms=[1.0] * STEPS, tensors=[6] * STEPS, short=False)
    assert update_fault("statistical", level, level, None, seeds=[level]) is None


def test_a_script_whose_gradients_rounding_moves_far_is_allowed_as_much() -> None:
    assert update_fault("rounding", BASE, changed(1.3), changed(1.1)) is None
    assert update_fault("rounding", BASE, changed(1.3), changed(1.0)) is not None


def test_a_script_in_which_rounding_decides_what_has_a_gradient_may_lose_one() -> None:
    assert update_fault("rounding", BASE, changed(tensors=5), changed(tensors=4)) is None


def test_weights_in_sixteen_bits_sparse_gradients_and_half_ones_are_weighed() -> None:
    watch = UpdateWatch(2)
    table, half = nn.Embedding(9, 4, sparse=True), nn.Linear(4, 2).bfloat16()
    optimizer = torch.optim.SGD([*table.parameters(), *half.parameters()], lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        half(table(torch.tensor([1, 3])).bfloat16()).float().sum().backward()
        watch.before_step(optimizer)
        watch.boundary()
    seen = watch.report()
    assert seen.tensors == [3, 3], "two steps, and no more"
    assert all(norm > 0 for norm in seen.norms)
    assert seen.short is False
    assert watch.report() == Updates()


@pytest.mark.parametrize("name", ["lr", "weight_decay", "betas", "eps"])
@pytest.mark.parametrize("equivalence", ["bit-equal", "rounding", "statistical"])
def test_a_setting_of_the_optimizer_is_the_same_or_wrong(name: str, equivalence: str) -> None:
    def updates(**settings: Any) -> Updates:
        watch = UpdateWatch(2)
        layer = nn.Linear(4, 2)
        # Two groups or one: the same settings are the same however they are grouped.
        parts = (
            [{"params": [p]} for p in layer.parameters()] if not settings else layer.parameters()
        )
        optimizer = torch.optim.AdamW(parts, **settings)
        for _ in range(2):
            layer(torch.ones(3, 4)).sum().backward()
            watch.before_step(optimizer)
            watch.boundary()
        return watch.report()

    other = {"lr": 2e-3, "weight_decay": 0.0, "betas": (0.9, 0.99), "eps": 1e-7}[name]
    base = updates()
    assert update_fault(equivalence, base, updates(lr=1e-3), None) is None
    fault = update_fault(equivalence, base, updates(**{name: other}), base)
    assert fault is not None
    assert f"`{name}" in fault
    moves = updates(**{name: other})
    assert update_fault(equivalence, base, moves, moves) is None, "it depends on the gradients"


@pytest.mark.usefixtures("warm")
def test_the_first_steps_of_a_script_are_weighed_where_trainings_are_compared() -> None:
    script = Path(__file__).parents[1] / "measure/scripts/leaves_memory.py"
    with Conductor([str(script), "list"], Session(weighed_steps=WEIGHED_STEPS)) as run:
        seen = run.steps(5)[0].updates.and_then(run.steps(20)[0].updates)
    assert len(seen.norms) == WEIGHED_STEPS
    assert seen.tensors == [2] * WEIGHED_STEPS
    assert seen.short is False


def _one_optimizer_each(first: int, lr: float = 1e-3, weighed: int = 8) -> Updates:
    """Parameters with an optimizer each, made late: at first each of them ends a step."""
    torch.manual_seed(0)
    layer = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2))
    optimizers = [torch.optim.Adam([p], lr=lr) for p in layer.parameters()]
    optimizers = optimizers[first:] + optimizers[:first]
    watch = UpdateWatch(weighed)
    for turn in range(6):
        layer(torch.ones(3, 4)).sum().backward()
        for optimizer in optimizers:
            watch.before_step(optimizer)
            if turn == 0 or optimizer is optimizers[-1]:
                watch.boundary()
    return watch.report()


def test_optimizers_of_single_parameters_may_step_in_any_order() -> None:
    base = _one_optimizer_each(0)
    for first in range(4):
        other, short = _one_optimizer_each(first), _one_optimizer_each(first, weighed=3)
        assert update_fault("bit-equal", _one_optimizer_each(0, weighed=3), short, None) is None
        for equivalence in ("bit-equal", "statistical"):
            assert update_fault(equivalence, base, other, None) is None
    assert update_fault("rounding", base, _one_optimizer_each(2, lr=2e-3), None) is not None
