"""Forward passes of several models in turns, so that they compare although the machine wavers."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from ridgeline.compress.evaluate.judge import of_rounds
from ridgeline.records.compression import Speedup
from ridgeline.records.image_compression import Latency

ROUND_SECONDS = 0.2
"""Of each model in a round: passes are repeated until it is full."""
WARM = 2


@torch.no_grad()
def time_in_turns(
    models: Sequence[nn.Module],
    images: Tensor,
    *,
    rounds: int = 12,
    round_seconds: float = ROUND_SECONDS,
    say: Callable[[str], None] = lambda _: None,
) -> list[Latency]:
    """Time one forward pass of each model on the same images.

    Args:
        models: In evaluation mode, on the device of the images.
        images: [n, 3, h, w]; n is the batch.
        rounds: 6 or more, for an interval at 95 %; the order turns around from one to the next.
        round_seconds: How long each model runs in a round, at least.
        say: Told what is under way.
    """
    passes = [_passes(model, images, round_seconds) for model in models]
    medians: list[list[float]] = [[] for _ in models]
    order = list(range(len(models)))
    for number in range(rounds):
        say(f"timing, round {number + 1} of {rounds}")
        for place in order:
            taken = [_seconds(models[place], images) for _ in range(passes[place])]
            medians[place].append(statistics.median(taken))
        order.reverse()
    return [
        Latency(
            seconds=statistics.median(own),
            round_seconds=tuple(own),
            batch=len(images),
            dtype=str(images.dtype).removeprefix("torch."),
            device=images.device.type,
            threads=torch.get_num_threads(),
        )
        for own in medians
    ]


def speedup(before: Latency, after: Latency) -> Speedup:
    """Of interleaved rounds."""
    return of_rounds(before.round_seconds, after.round_seconds)


def _passes(model: nn.Module, images: Tensor, round_seconds: float) -> int:
    """Of a round, after a warm-up."""
    for _ in range(WARM):
        _seconds(model, images)
    return max(1, round(round_seconds / _seconds(model, images)))


def _seconds(model: nn.Module, images: Tensor) -> float:
    _wait(images)
    start = time.perf_counter()
    model(images)
    _wait(images)
    return time.perf_counter() - start


def _wait(images: Tensor) -> None:
    if images.device.type == "cuda":
        torch.cuda.synchronize(images.device)
