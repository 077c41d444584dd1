"""Changes to logits that say which tokens may come, before any temperature.

In vLLM's order:

    grammar            tokens that break it: -∞
    min_tokens         EOS and stop ids: -∞ until so many tokens are there
    logit_bias         l + bias                                        OpenAI API reference
    repetition         l / r if l > 0 else l · r, for tokens of prompt or answer
                                                                       CTRL, 1909.05858, sec. 4.1
    frequency          l - f · count in the answer                     OpenAI API reference
    presence           l - p · [count in the answer > 0]               OpenAI API reference

A row after drafts is treated as if these had been accepted.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ridgeline.serve.sampling.state import SamplingState


@dataclass(frozen=True, slots=True)
class Row:
    """One row of logits: an answer's next token, or the one after some drafts."""

    state: SamplingState
    drafts: tuple[int, ...] = ()
    """Taken as accepted before this row."""


def edit(logits: Tensor, rows: list[Row]) -> None:
    """Change [R, V] float32 logits in place, one row each."""
    _grammars(logits, rows)
    _endings(logits, rows)
    _biases(logits, rows)
    _penalties(logits, rows)


def _grammars(logits: Tensor, rows: list[Row]) -> None:
    if any(row.state.matcher is not None for row in rows):
        from ridgeline.serve.sampling.grammar import mask

        mask(logits, [(row.state.matcher, row.drafts) for row in rows])


def _endings(logits: Tensor, rows: list[Row]) -> None:
    at: list[int] = []
    tokens: list[int] = []
    for index, row in enumerate(rows):
        state = row.state
        if state.num_tokens + len(row.drafts) < state.sampling.min_tokens:
            ending = {*state.eos_ids, *state.sampling.stop_ids}
            at.extend([index] * len(ending))
            tokens.extend(ending)
    if at:
        logits[torch.tensor(at), torch.tensor(tokens)] = float("-inf")


def _biases(logits: Tensor, rows: list[Row]) -> None:
    at: list[int] = []
    tokens: list[int] = []
    values: list[float] = []
    for index, row in enumerate(rows):
        bias = row.state.sampling.logit_bias
        at.extend([index] * len(bias))
        tokens.extend(bias)
        values.extend(bias.values())
    if at:
        logits[torch.tensor(at), torch.tensor(tokens)] += torch.tensor(values, device=logits.device)


def _penalties(logits: Tensor, rows: list[Row]) -> None:
    found = [
        (index, row.state.sampling, row.state.history.with_drafts(row.drafts))
        for index, row in enumerate(rows)
        if row.state.history is not None
    ]
    if not found:
        return
    sizes = [len(tokens) for _, _, (tokens, _) in found]

    def spread(values: list[float]) -> Tensor:
        return torch.from_numpy(np.repeat(np.array(values, np.float32), sizes)).to(logits.device)

    at = torch.from_numpy(np.repeat([index for index, _, _ in found], sizes)).to(logits.device)
    tokens = torch.from_numpy(np.concatenate([one[2][0] for one in found])).to(logits.device)
    counts = torch.from_numpy(np.concatenate([one[2][1] for one in found])).to(logits.device)
    repetition = spread([sampling.repetition_penalty for _, sampling, _ in found])
    frequency = spread([sampling.frequency_penalty for _, sampling, _ in found])
    presence = spread([sampling.presence_penalty for _, sampling, _ in found])
    values = logits[at, tokens]
    values = torch.where(values > 0, values / repetition, values * repetition)
    values -= frequency * counts
    values -= presence * (counts > 0)
    logits[at, tokens] = values
