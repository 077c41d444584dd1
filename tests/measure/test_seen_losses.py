"""Losses are told once each, and of a script that turns out to train from its first step on."""

from __future__ import annotations

import torch

from ridgeline.measure.child.seen_losses import SeenLosses, sum_of


def step(losses: SeenLosses, value: float) -> None:
    losses.remember([torch.tensor(value)])
    losses.end_step()


def test_the_losses_of_a_script_that_first_looked_like_inference_are_told_from_the_first() -> None:
    losses = SeenLosses(recording=True)
    for _ in range(3):
        losses.remember_output(torch.ones(4))
    assert len(losses.untold()) == 3
    losses.clear()  # its first backward
    for value in (5.0, 4.0):
        step(losses, value)
    assert [sum_of(each) for each in losses.untold()] == [5.0, 4.0]
    step(losses, 3.0)
    assert [sum_of(each) for each in losses.untold()] == [3.0]
    assert losses.untold() == []


def test_of_a_detector_boxes_and_scores_are_both_looked_at() -> None:
    def told(scores: float) -> float:
        losses = SeenLosses(recording=True)
        found = {"labels": torch.ones(3, dtype=torch.long), "none": torch.zeros(0)}
        losses.remember_output(
            [{**found, "boxes": torch.ones(3, 4), "scores": scores * torch.ones(3)}]
        )
        ((one),) = losses.untold()
        return sum_of(one)

    assert told(0.9) == told(0.9) != told(0.8)
