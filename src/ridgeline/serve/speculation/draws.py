"""From a drafter's logits to drafts, by the request's own parameters."""

from __future__ import annotations

import torch
from torch import Tensor

from ridgeline.serve.sampling.distribution import probabilities
from ridgeline.serve.sampling.draw import Purpose, draw
from ridgeline.serve.sampling.edits import Row, edit
from ridgeline.serve.sampling.state import SamplingState


def draw_drafts(
    logits: Tensor, states: list[SamplingState], before: list[tuple[int, ...]]
) -> tuple[list[int], list[Tensor | None]]:
    """One draft per row, and what it was drawn from (None: greedy, so it is certain).

    Grammar, penalties, temperature and the rest apply to drafts as to tokens: q is then close to p,
    and a draft that the target would never take is not made.

    Args:
        logits: [R, V] float32; overwritten.
        states: Of each row.
        before: The drafts before each row's, taken as accepted.
    """
    rows = [Row(state, drafts) for state, drafts in zip(states, before, strict=True)]
    edit(logits, rows)
    greedy = logits.argmax(-1)
    random = [at for at, state in enumerate(states) if not state.greedy]
    drawn_from: list[Tensor | None] = [None] * len(states)
    if random:
        mine = probabilities(logits[random], [states[at].sampling for at in random])
        numbers = [states[at].uniform(len(before[at]), Purpose.DRAFT) for at in random]
        greedy[random] = draw(mine, torch.tensor(numbers, dtype=torch.float64))
        for place, at in enumerate(random):
            drawn_from[at] = mine[place]
    return greedy.tolist(), drawn_from
