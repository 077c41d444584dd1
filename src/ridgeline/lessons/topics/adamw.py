"""An optimizer's step is all traffic: four passes of it can be one."""

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

ORDER = 11
WHY = (
    "AdamW needs each parameter's weight, gradient and two moments once: 16 bytes in and 12 out; a "
    "pass for each line of the formula moves 48, and every byte of them is time."
)
ON_A_GPU = "four passes, one pass and torch's fused AdamW are timed on 16 Mi parameters"
TASK = (
    "solve(p, g, m, v) makes one step of AdamW in place by Triton (lr 1e-3, betas 0.9 and 0.999, "
    "eps 1e-8, weight decay 0.01, first step); move at most 28 bytes per parameter."
)
_SIZE = 3000
_BLOCK = 1024
RATE, BETA_1, BETA_2, EPS, DECAY = 1e-3, 0.9, 0.999, 1e-8, 0.01


@triton.jit
def mean_kernel(
    m: tl.tensor, g: tl.tensor, size: tl.tensor, beta: tl.tensor, BLOCK: tl.constexpr
) -> None:
    """Move the first moment."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < size
    found = beta * tl.load(m + at, mask=inside) + (1.0 - beta) * tl.load(g + at, mask=inside)
    tl.store(m + at, found, mask=inside)


@triton.jit
def square_kernel(
    v: tl.tensor, g: tl.tensor, size: tl.tensor, beta: tl.tensor, BLOCK: tl.constexpr
) -> None:
    """Move the second moment."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < size
    gradient = tl.load(g + at, mask=inside)
    found = beta * tl.load(v + at, mask=inside) + (1.0 - beta) * gradient * gradient
    tl.store(v + at, found, mask=inside)


@triton.jit
def direction_kernel(
    u: tl.tensor, m: tl.tensor, v: tl.tensor, size: tl.tensor, eps: tl.tensor, unbias: tl.tensor,
    unbias_square: tl.tensor, BLOCK: tl.constexpr,
) -> None:  # fmt: skip
    """Direction of the step."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < size
    root = tl.sqrt(tl.load(v + at, mask=inside) * unbias_square) + eps
    tl.store(u + at, tl.load(m + at, mask=inside) * unbias / root, mask=inside)


@triton.jit
def apply_kernel(
    p: tl.tensor, u: tl.tensor, size: tl.tensor, rate: tl.tensor, keep: tl.tensor,
    BLOCK: tl.constexpr,
) -> None:  # fmt: skip
    """Decay and step the parameters."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < size
    found = keep * tl.load(p + at, mask=inside) - rate * tl.load(u + at, mask=inside)
    tl.store(p + at, found, mask=inside)


@triton.jit
def step_kernel(
    p: tl.tensor, g: tl.tensor, m: tl.tensor, v: tl.tensor, size: tl.tensor, beta_1: tl.tensor,
    beta_2: tl.tensor, eps: tl.tensor, rate: tl.tensor, keep: tl.tensor, unbias: tl.tensor,
    unbias_square: tl.tensor, BLOCK: tl.constexpr,
) -> None:  # fmt: skip
    """All four in registers."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < size
    gradient = tl.load(g + at, mask=inside)
    mean = beta_1 * tl.load(m + at, mask=inside) + (1.0 - beta_1) * gradient
    square = beta_2 * tl.load(v + at, mask=inside) + (1.0 - beta_2) * gradient * gradient
    step = mean * unbias / (tl.sqrt(square * unbias_square) + eps)
    tl.store(p + at, keep * tl.load(p + at, mask=inside) - rate * step, mask=inside)
    tl.store(m + at, mean, mask=inside)
    tl.store(v + at, square, mask=inside)


def bad(p: Tensor, g: Tensor, m: Tensor, v: Tensor) -> Tensor:
    """Take a pass for each line of the formula."""
    size, grid = p.numel(), (triton.cdiv(p.numel(), _BLOCK),)
    step = torch.empty_like(p)
    mean_kernel[grid](m, g, size, BETA_1, BLOCK=_BLOCK)
    square_kernel[grid](v, g, size, BETA_2, BLOCK=_BLOCK)
    unbias = (1 / (1 - BETA_1), 1 / (1 - BETA_2))
    direction_kernel[grid](step, m, v, size, EPS, *unbias, BLOCK=_BLOCK)
    apply_kernel[grid](p, step, size, RATE, 1 - RATE * DECAY, BLOCK=_BLOCK)
    return p


def good(p: Tensor, g: Tensor, m: Tensor, v: Tensor) -> Tensor:
    """Take one pass over everything."""
    step_kernel[(triton.cdiv(p.numel(), _BLOCK),)](
        p, g, m, v, p.numel(), BETA_1, BETA_2, EPS, RATE, 1 - RATE * DECAY, 1 / (1 - BETA_1),
        1 / (1 - BETA_2), BLOCK=_BLOCK,
    )  # fmt: skip
    return p


def reference(p: Tensor, g: Tensor) -> Tensor:
    """The first step of torch's AdamW, in float64."""
    parameter = torch.nn.Parameter(p.double())
    parameter.grad = g.double()
    torch.optim.AdamW(
        [parameter], lr=RATE, betas=(BETA_1, BETA_2), eps=EPS, weight_decay=DECAY
    ).step()
    return parameter.detach()


def _state(size: int, device: str = "cpu") -> tuple[Tensor, Tensor, Tensor, Tensor]:
    p, g = (torch.randn(size, device=device) for _ in range(2))
    return p, g, torch.zeros_like(p), torch.zeros_like(p)


def predict() -> Figures:
    """Vectors that each pass reads and writes."""
    passes = {"moments": 2 * (2 + 1), "direction": 2 + 1, "parameters": 2 + 1}
    return {
        "bad: four passes": {"bytes per parameter": 4.0 * sum(passes.values()), "launches": 4.0},
        "good: one pass": {"bytes per parameter": 4.0 * (4 + 3), "launches": 1.0},
    }


def observe() -> CountedLesson:
    """Count the bytes of both."""
    figures: Figures = {}
    results = []
    for name, kernel in (("bad: four passes", bad), ("good: one pass", good)):
        given = _state(_SIZE)
        exact = reference(*given[:2])
        out, launches = watched(kernel, *given)
        figures[name] = {
            "bytes per parameter": launches.moved_bytes / _SIZE,
            "launches": float(len(launches.seen)),
        }
        results.append((out, exact))
    return CountedLesson(figures=figures, results=results)


def calls(device: str) -> Calls:
    """Torch's own step, one operation at a time and fused."""
    size = 2**21 if device == "cpu" else 2**24
    found: Calls = {}
    for name, how in (
        ("bad: torch, an operation at a time", {"foreach": False}),
        ("good: torch, fused", {"fused": True}),
    ):
        parameter = torch.nn.Parameter(torch.randn(size, device=device))
        parameter.grad = torch.randn_like(parameter)
        found[name] = torch.optim.AdamW([parameter], **how).step
    if device == "cuda":
        state = _state(size, device)
        found["bad: four passes"] = lambda: bad(*state)
        found["good: one pass"] = lambda: good(*state)
    return found


def grade(learner: ModuleType) -> Iterator[LessonMark]:
    """The parameters, the moments and the bytes."""
    given = _state(_SIZE)
    exact, gradient = reference(*given[:2]), given[1].double()
    _, launches = watched(solution(learner), *given, in_place=True)
    yield right(given[0], exact)
    yield right(given[2], (1 - BETA_1) * gradient)
    yield right(given[3], (1 - BETA_2) * gradient.square())
    yield marked("bytes per parameter", launches.moved_bytes / _SIZE, "at most", 28)
    yield marked("launches", len(launches.seen), "at least", 1)
