"""The layout of images decides which axis lanes can run along."""

from __future__ import annotations

# ruff: noqa: N803  (Triton's compile-time constants are upper case, here as everywhere)
from collections.abc import Iterator
from types import ModuleType

import torch
import triton
import triton.language as tl
from torch import Tensor

from ridgeline.lessons.shape import Calls, CountedLesson, Figures, marked, right, solution
from ridgeline.lessons.triton_counts import watched
from ridgeline.records.lesson import LessonMark

ORDER = 10
WHY = (
    "In NCHW the channels of a pixel lie height x width apart, in NHWC side by side: work over "
    "channels wants NHWC, work over pixels NCHW, and tensor cores want channels last."
)
ON_A_GPU = "both kernels and a convolution in both layouts are timed in bfloat16"
TASK = (
    "solve(x) averages the channels of each pixel of a contiguous NCHW batch in float32 by Triton; "
    "the layout stays, so choose the lanes: at most 4 sectors for a load."
)
_SHAPE = (2, 32, 8, 16)


@triton.jit
def channels_kernel(
    x: tl.tensor,
    out: tl.tensor,
    pixels: tl.tensor,
    image_stride: tl.tensor,
    channel_stride: tl.tensor,
    pixel_stride: tl.tensor,
    CHANNELS: tl.constexpr,
) -> None:
    """Average the channels of one pixel, which lie on lanes."""
    image, pixel = tl.program_id(0), tl.program_id(1)
    lanes = tl.arange(0, CHANNELS)
    place = x + image * image_stride + pixel * pixel_stride + lanes * channel_stride
    tl.store(out + image * pixels + pixel, tl.sum(tl.load(place), 0) / CHANNELS)


def mean_over_channels(x: Tensor) -> Tensor:
    """The mean [N, H, W] of [N, C, H, W] in whatever layout."""
    count, channels, height, width = x.shape
    out = torch.empty(count, height, width, device=x.device)
    pixels = height * width
    channels_kernel[(count, pixels)](
        x, out, pixels, x.stride(0), x.stride(1), x.stride(3), CHANNELS=channels, num_warps=1
    )
    return out


def _layouts(shape: tuple[int, ...], device: str = "cpu") -> dict[str, Tensor]:
    x = torch.randn(shape, device=device)
    return {
        "bad: NCHW, lanes over channels": x,
        "good: NHWC, lanes over channels": x.contiguous(memory_format=torch.channels_last),
    }


def predict() -> Figures:
    """The bytes between two channels, and how many of them share a sector."""
    count, channels, height, width = _SHAPE
    found = {}
    for name, apart in (
        ("bad: NCHW, lanes over channels", height * width * 4),
        ("good: NHWC, lanes over channels", 4),
    ):
        sectors = channels * min(32, apart) / 32
        found[name] = {
            "bytes between channels": float(apart),
            "sectors of a load": sectors,
            "sectors in all": sectors * count * height * width,
        }
    return found


def observe() -> CountedLesson:
    """Run one kernel over both layouts."""
    figures: Figures = {}
    results = []
    for name, x in _layouts(_SHAPE).items():
        out, launches = watched(mean_over_channels, x)
        figures[name] = {
            "bytes between channels": float(x.stride(1) * 4),
            "sectors of a load": launches.sectors_of("load"),
            "sectors in all": float(launches.sectors),
        }
        results.append((out, x.double().mean(1)))
    return CountedLesson(figures=figures, results=results)


def calls(device: str) -> Calls:
    """A mean over channels, and on a GPU a convolution, in both layouts."""
    shape = (8, 64, 56, 56) if device == "cpu" else (64, 64, 56, 56)
    both = list(_layouts(shape, device).values())
    if device == "cpu":
        return {
            "bad: x.mean(1) in NCHW": lambda: both[0].mean(1),
            "good: x.mean(1) in NHWC": lambda: both[1].mean(1),
        }
    weight = torch.randn(64, 64, 3, 3, device=device).bfloat16()
    images = [one.bfloat16() for one in both]
    weights = [weight, weight.contiguous(memory_format=torch.channels_last)]
    return {
        "bad: mean over channels, NCHW": lambda: mean_over_channels(both[0]),
        "good: mean over channels, NHWC": lambda: mean_over_channels(both[1]),
        "bad: convolution, NCHW": lambda: torch.conv2d(images[0], weights[0], padding=1),
        "good: convolution, NHWC": lambda: torch.conv2d(images[1], weights[1], padding=1),
    }


def grade(learner: ModuleType) -> Iterator[LessonMark]:
    """The means and the sectors."""
    x = torch.randn(_SHAPE)
    found, launches = watched(solution(learner), x)
    yield right(found, x.double().mean(1))
    yield marked("sectors of a load", launches.sectors_of("load"), "at most", 4)
    yield marked("bytes loaded", launches.loaded_bytes, "at most", x.numel() * 4)
    yield marked("launches", len(launches.seen), "at least", 1)
    odd = torch.randn(3, 32, 5, 7)
    yield right(solution(learner)(odd), odd.double().mean(1), what="relative error of 5 x 7 pixels")
