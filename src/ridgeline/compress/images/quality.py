"""How well a classifier knows images, and how far it is from the one that it was made from."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ridgeline.compress.evaluate.quality import Distances, Scores
from ridgeline.errors import InputError, in_words
from ridgeline.records.compression import Divergence
from ridgeline.records.image_compression import ImageQuality

BATCH = 64


@torch.no_grad()
def logits_of(model: nn.Module, pixel_values: Tensor, batch: int = BATCH) -> Tensor:
    """[images, classes] float32 on the CPU, of a model of transformers or a plain one.

    Raises:
        InputError: The model does not take such images.
    """
    model.eval()
    place = next(model.parameters())
    answers = []
    for part in pixel_values.split(batch):
        try:
            output: Any = model(part.to(place.device, place.dtype))
        except (RuntimeError, ValueError) as error:
            raise InputError(
                f"the model cannot take images {list(part.shape)}: {in_words(error)}"
            ) from error
        answers.append(getattr(output, "logits", output).float().cpu())
    return torch.cat(answers)


def quality(logits: Tensor, labels: Tensor) -> ImageQuality:
    """Against the labels.

    Args:
        logits: [images, classes].
        labels: [images] int64.
    """
    scores = Scores()
    scores.add(logits.double().log_softmax(1), labels)
    return ImageQuality(accuracy=scores.hits / scores.count, loss=scores.loss / scores.count)


def divergence(given: Tensor, logits: Tensor) -> Divergence:
    """From the logits of the model as given, both [images, classes]."""
    distances = Distances()
    distances.add(logits.double().log_softmax(1), given.double().log_softmax(1))
    return distances.divergence()
