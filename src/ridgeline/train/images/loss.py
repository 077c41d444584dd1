"""The loss of an image classifier: cross entropy in fp32, with smoothed and blended labels.

    Σ over images of (1-ε) CE(label) + ε mean over classes of CE(class)

Szegedy et al., arXiv 1512.00567, section 7. On held-out images it is the cross entropy alone, and
the answers that were right are counted (top-1).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional

from ridgeline.train.batch import IGNORED
from ridgeline.train.images.batch import ImageBatch
from ridgeline.train.loss import Objective
from ridgeline.train.part import FilledModel, Part
from ridgeline.train.ranks import Ranks
from ridgeline.train.task import logits_of


def image_objective(smoothing: float) -> Objective:
    """The objective of classification.

    Args:
        smoothing: ε, the share of the label that is spread over all classes.
    """

    def objective(model: nn.Module, batch: ImageBatch) -> Tensor:
        return class_loss(logits_of(model(batch.pixels)), batch, smoothing)

    return objective


def class_loss(logits: Tensor, batch: ImageBatch, smoothing: float) -> Tensor:
    """The sum of losses over the images of a batch, a scalar in fp32.

    Args:
        logits: [B, classes].
        batch: Its labels, and those blended in.
        smoothing: ε.
    """
    loss = _summed(logits, batch.labels, smoothing)
    if batch.partners is None:
        return loss
    return batch.share * loss + (1.0 - batch.share) * _summed(logits, batch.partners, smoothing)


def _summed(logits: Tensor, labels: Tensor, smoothing: float) -> Tensor:
    return functional.cross_entropy(
        logits.float(), labels, reduction="sum", label_smoothing=smoothing, ignore_index=IGNORED
    )


class HeldOutAccuracy(Part):
    """Counts right answers while held-out images are judged; it takes their loss, too."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self._right = torch.zeros(2, dtype=torch.float64)
        self._top1: float | None = None

    @classmethod
    def make(cls, filled: FilledModel) -> HeldOutAccuracy | None:
        """Every run on images has one."""
        return cls(filled.ranks) if filled.recipe.images is not None else None

    def objective(self, given: Objective) -> Objective:
        """Judge where no gradients are taken."""

        def objective(model: nn.Module, batch: ImageBatch) -> Tensor:
            return given(model, batch) if torch.is_grad_enabled() else self._judge(model, batch)

        return objective

    def around_evaluation(self) -> AbstractContextManager[None]:
        """Count from nothing, and add up over the ranks in the end."""
        return self._counting()

    def figures(self, steps: int, phases_by_rank: Sequence[Mapping[str, float]]) -> dict[str, Any]:
        """Top-1, and for what share of their time steps waited for images."""
        del steps
        found = {"top1": self._top1, "input_bound_share": _waited(phases_by_rank)}
        self._top1 = None
        return found

    def _judge(self, model: nn.Module, batch: ImageBatch) -> Tensor:
        logits = logits_of(model(batch.pixels))
        counted = batch.labels != IGNORED
        right = ((logits.argmax(dim=-1) == batch.labels) & counted).sum()
        self._right += torch.stack([right, counted.sum()]).to("cpu", torch.float64)
        return class_loss(logits, batch, 0.0)

    @contextmanager
    def _counting(self) -> Iterator[None]:
        self._right.zero_()
        yield
        total = self._right.to(self._ranks.device)
        if self._ranks.size("data") > 1:
            dist.all_reduce(total, group=self._ranks.group("data"))
        right, judged = total.tolist()
        self._top1 = right / judged if judged else None


def _waited(phases_by_rank: Sequence[Mapping[str, float]]) -> float:
    """The mean over ranks of the share of time in the phase `data`."""
    shares = [phases["data"] / (sum(phases.values()) or 1.0) for phases in phases_by_rank]
    return sum(shares) / len(shares)
