"""One model, or two, over the same windows of a text.

Shapes: B windows, T tokens, V words, N scored tokens. Logits are turned into probabilities in
float32, a few hundred tokens at a time: of a large vocabulary they are the largest thing here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from ridgeline.compress.evaluate.text import Window, batches
from ridgeline.errors import InputError
from ridgeline.records.compression import Divergence, Protocol, Quality

FORWARD_TOKENS = 4096
"""At a time; fewer where the vocabulary is so large that `MOST_LOGITS` are reached."""
MOST_LOGITS = 2**28
ROWS = 256
"""Tokens whose probabilities are computed at a time."""


@dataclass(slots=True)
class Scores:
    """The losses and hits of all scored tokens of a text."""

    loss: float = 0.0
    """The sum over tokens."""
    hits: int = 0
    count: int = 0

    def add(self, log_probs: Tensor, targets: Tensor) -> None:
        """Count tokens with log-probabilities [N, V] and targets [N]."""
        self.loss += -float(log_probs.gather(1, targets[:, None]).double().sum())
        self.hits += int((log_probs.argmax(1) == targets).sum())
        self.count += len(targets)

    def quality(self, protocol: Protocol) -> Quality:
        """Their means, in every unit."""
        loss = self.loss / self.count
        return Quality(
            loss=loss,
            perplexity=_exp(loss),
            word_perplexity=_exp(loss * protocol.tokens / max(1, protocol.words)),
            bits_per_byte=loss * protocol.tokens / protocol.bytes / math.log(2),
            accuracy=self.hits / self.count,
        )


@dataclass(slots=True)
class Distances:
    """How far a model's probabilities are from a reference's."""

    kl: list[Tensor] = field(default_factory=list)
    agreed: int = 0

    def add(self, log_probs: Tensor, reference: Tensor) -> None:
        """Count tokens with log-probabilities [N, V], both."""
        kl = (reference.exp() * (reference - log_probs)).sum(1)
        self.kl.append(kl.clamp_min(0.0).cpu())
        self.agreed += int((log_probs.argmax(1) == reference.argmax(1)).sum())

    def divergence(self) -> Divergence:
        """Over all of them."""
        kl = torch.cat(self.kl).double()
        return Divergence(
            kl_mean=float(kl.mean()),
            kl_p99=float(torch.quantile(kl, 0.99)),
            agreement=self.agreed / len(kl),
        )


@dataclass(frozen=True, slots=True)
class Measured:
    """What one pass over a text gave."""

    scores: Scores
    reference: Scores
    """Nothing counted where there was no reference."""
    distances: Distances


def check_finite(model: str, quality: Quality) -> None:
    """Refuse a model that is broken as it was given.

    Raises:
        InputError: Its predictions are inf or NaN.
    """
    if not math.isfinite(quality.loss):
        raise InputError(
            f"{model}: its predictions are inf or NaN, so its weights are, or its number format"
            " overflows; fetch it again, or save it in another dtype"
        )


@torch.inference_mode()
def measure(
    model: nn.Module,
    tokens: Tensor,
    found: Sequence[Window],
    reference: nn.Module | None = None,
    on_progress: Callable[[str], None] = lambda _: None,
) -> Measured:
    """Put the windows of `tokens` [T] through the model and, beside it, a reference.

    Args:
        model: A causal LM of transformers, on its device.
        tokens: The text.
        found: Its windows.
        reference: With the same vocabulary.
        on_progress: Told how far it is.
    """
    scores, of_reference, distances = Scores(), Scores(), Distances()
    vocab = model.config.get_text_config().vocab_size  # type: ignore[union-attr,operator]
    done = 0
    for together in batches(list(found), min(FORWARD_TOKENS, MOST_LOGITS // vocab)):
        rows = torch.stack([tokens[one.begin : one.end] for one in together])
        logits = _logits(model, rows)
        beside = None if reference is None else _logits(reference, rows)
        for place, one in enumerate(together):
            # The logits at a token predict the one after it.
            scored = slice(one.first - one.begin - 1, one.end - one.begin - 1)
            targets = tokens[one.first : one.end].to(logits.device)
            theirs = None if beside is None else beside[place, scored]
            _add(logits[place, scored], theirs, targets, scores, of_reference, distances)
        done += len(together)
        on_progress(f"window {done} of {len(found)}")
    return Measured(scores, of_reference, distances)


def _add(
    logits: Tensor,
    beside: Tensor | None,
    targets: Tensor,
    scores: Scores,
    of_reference: Scores,
    distances: Distances,
) -> None:
    for start in range(0, len(targets), ROWS):
        some = slice(start, start + ROWS)
        log_probs = logits[some].float().log_softmax(1)
        scores.add(log_probs, targets[some])
        if beside is not None:
            theirs = beside[some].to(log_probs.device).float().log_softmax(1)
            of_reference.add(theirs, targets[some])
            distances.add(log_probs, theirs)


def _logits(model: nn.Module, rows: Tensor) -> Tensor:
    device = next(model.parameters()).device
    found: Tensor = model(input_ids=rows.to(device), use_cache=False).logits
    return found


def _exp(value: float) -> float:
    """Infinite where it does not fit, as a ruined model's perplexity."""
    return math.exp(value) if value < 700 else math.inf
