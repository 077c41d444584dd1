"""How well a classifier knows images, how far it is from the one as given, and how fast it is.

Several models are timed in turns, so that they compare although the machine wavers.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor, nn

from ridgeline.compress.evaluate.judge import of_rounds
from ridgeline.compress.evaluate.quality import Distances, Scores
from ridgeline.compress.images.material import Images
from ridgeline.compress.images.outputs import OutputComparison, answered
from ridgeline.compress.vision.batches import Batch, inputs_of, rows_of
from ridgeline.errors import InputError
from ridgeline.records.compression import Divergence, Speedup
from ridgeline.records.image_compression import ImageQuality, Latency

BATCH = 64


def logits_of(model: nn.Module, pixel_values: Tensor, batch: int = BATCH) -> Tensor:
    """The logits of images that lie in memory, [images, classes] float32 on the CPU.

    Raises:
        InputError: The model does not take such images.
    """
    return _logits(model, pixel_values.split(batch))


def logits_over(model: nn.Module, images: Images) -> Tensor:
    """The logits of images as they are read, [images, classes] float32 on the CPU.

    Raises:
        InputError: An image cannot be read, or the model does not take such images.
    """
    return _logits(model, images.batches())


@torch.no_grad()
def _logits(model: nn.Module, batches: Iterable[Batch]) -> Tensor:
    if not isinstance(model, torch.fx.GraphModule):
        model.eval()  # a program has no other mode, and says so
    parts = []
    for batch in batches:
        output, part = answered(model, batch), inputs_of(batch)[0]
        logits = getattr(output, "logits", output)
        if not isinstance(logits, Tensor) or logits.ndim != 2:
            what = f"{list(logits.shape)}" if isinstance(logits, Tensor) else type(logits).__name__
            raise InputError(
                f"the model gives {what} for images {list(part.shape)}, not logits [images,"
                " classes]"
            )
        parts.append(logits.float().cpu())
    return torch.cat(parts)


def compare_over(given: nn.Module, other: nn.Module, images: Images) -> OutputComparison:
    """All outputs of two models beside each other, batch by batch as images are read.

    Raises:
        InputError: An image cannot be read, or the outputs have other shapes.
    """
    found = OutputComparison()
    for batch in images.batches():
        found.add(answered(given, batch), answered(other, batch))
    return found


def quality(logits: Tensor, labels: Tensor) -> ImageQuality:
    """How well logits meet the labels.

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


ROUND_SECONDS = 0.2
"""Seconds of each model in a round: passes are repeated until they are full."""
WARM = 2


@torch.no_grad()
def time_in_turns(
    models: Sequence[nn.Module],
    images: Batch,
    *,
    rounds: int = 12,
    round_seconds: float = ROUND_SECONDS,
    on_progress: Callable[[str], None] = lambda _: None,
) -> list[Latency]:
    """Time one forward pass of each model on the same images.

    Args:
        models: In evaluation mode, on the device of the images.
        images: A batch of inputs, on that device.
        rounds: 6 or more, for an interval at 95 %; the order turns around from one to the next.
        round_seconds: How long each model runs in a round, at least.
        on_progress: Told what is under way.
    """
    passes = [_passes(model, images, round_seconds) for model in models]
    medians: list[list[float]] = [[] for _ in models]
    order = list(range(len(models)))
    for number in range(rounds):
        on_progress(f"timing, round {number + 1} of {rounds}")
        for place in order:
            taken = [_seconds(models[place], images) for _ in range(passes[place])]
            medians[place].append(statistics.median(taken))
        order.reverse()
    return [
        Latency(
            seconds=statistics.median(own),
            round_seconds=tuple(own),
            batch=rows_of(images),
            dtype=str(inputs_of(images)[0].dtype).removeprefix("torch."),
            device=inputs_of(images)[0].device.type,
            threads=torch.get_num_threads(),
        )
        for own in medians
    ]


def speedup(before: Latency, after: Latency) -> Speedup:
    """The speedup that interleaved rounds show."""
    return of_rounds(before.round_seconds, after.round_seconds)


def _passes(model: nn.Module, images: Batch, round_seconds: float) -> int:
    """The number of passes of a round, after a warm-up."""
    for _ in range(WARM):
        _seconds(model, images)
    return max(1, round(round_seconds / _seconds(model, images)))


def _seconds(model: nn.Module, images: Batch) -> float:
    _wait(inputs_of(images)[0])
    start = time.perf_counter()
    model(*inputs_of(images))
    _wait(inputs_of(images)[0])
    return time.perf_counter() - start


def _wait(images: Tensor) -> None:
    if images.device.type == "cuda":
        torch.cuda.synchronize(images.device)
