"""Attention's back ends compute the same, and differ in what they write down."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention
from torch.utils._python_dispatch import TorchDispatchMode

from ridgeline.lessons.shape import (
    Calls,
    CountedLesson,
    Figures,
    marked,
    relative_error,
    right,
    solution,
)
from ridgeline.records.lesson import LessonMark

ORDER = 13
WHY = (
    "The math back end writes the scores of every query with every key, N x N for each head; the "
    "flash back end keeps a running maximum and sum and writes N x D: 128 MiB against 1 MiB for a "
    "head of 8,192 tokens in bfloat16, D = 64."
)
ON_A_GPU = "math, memory-efficient, flash and cuDNN are timed in bfloat16 at 4,096 tokens"
TASK = (
    "solve(q, k, v) attends in PyTorch over float32 tensors of 2 x 512 x 32 (heads, tokens, dim), "
    "not causal; no tensor that an operator makes may be larger than 2 x 512 x 64 numbers."
)
_HEADS, _DIM = 2, 64
_LENGTHS = (256, 512, 1024)


class LargestTensor(TorchDispatchMode):
    """Notes the most bytes that one operator's result has, and the products of all matmuls."""

    def __init__(self) -> None:
        super().__init__()
        self.nbytes = 0
        self.products = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:  # the signature is torch's
        """Run the operator, and look at what it made."""
        found = func(*args, **(kwargs or {}))
        for one in found if isinstance(found, list | tuple) else [found]:
            if isinstance(one, Tensor):
                self.nbytes = max(self.nbytes, one.numel() * one.element_size())
        if func in (torch.ops.aten.bmm.default, torch.ops.aten.mm.default):
            self.products += found.numel() * args[0].shape[-1]
        return found


def attend(q: Tensor, k: Tensor, v: Tensor, backend: SDPBackend) -> Tensor:
    """Attention by one back end."""
    with sdpa_kernel(backend):
        found: Tensor = scaled_dot_product_attention(q, k, v)
    return found


def _exact(given: list[Tensor]) -> Tensor:
    q, k, v = (one.double() for one in given)
    found: Tensor = scaled_dot_product_attention(q, k, v)
    return found


BACKENDS = {"bad: math": SDPBackend.MATH, "good: flash": SDPBackend.FLASH_ATTENTION}


def predict() -> Figures:
    """Scores are heads x N x N, an output is heads x N x D, of four bytes a number."""
    found: Figures = {}
    for length in _LENGTHS:
        found[f"bad: math, {length} tokens"] = {
            "bytes of the largest tensor": float(_HEADS * length * max(length, _DIM) * 4)
        }
        found[f"good: flash, {length} tokens"] = {
            "bytes of the largest tensor": float(_HEADS * length * _DIM * 4)
        }
    return found


def observe() -> CountedLesson:
    """Look at every tensor that an operator makes."""
    figures: Figures = {}
    results = []
    for length in _LENGTHS:
        given = [torch.randn(1, _HEADS, length, _DIM) for _ in range(3)]
        exact = _exact(given)
        for name, backend in BACKENDS.items():
            with LargestTensor() as largest:
                out = attend(given[0], given[1], given[2], backend)
            figures[f"{name}, {length} tokens"] = {
                "bytes of the largest tensor": float(largest.nbytes)
            }
            results.append((out, exact))
    return CountedLesson(figures=figures, results=results)


def calls(device: str) -> Calls:
    """Each back end on the same heads."""
    if device == "cpu":
        given = [torch.randn(1, 4, 1024, _DIM) for _ in range(3)]
        return {name: _call(given, backend) for name, backend in BACKENDS.items()}
    given = [torch.randn(4, 16, 4096, 128, device=device).bfloat16() for _ in range(3)]
    others = {
        "memory-efficient": SDPBackend.EFFICIENT_ATTENTION,
        "good: cuDNN": SDPBackend.CUDNN_ATTENTION,
    }
    return {name: _call(given, one) for name, one in {**BACKENDS, **others}.items()}


def _call(given: list[Tensor], backend: SDPBackend) -> Callable[[], object]:
    return lambda: attend(given[0], given[1], given[2], backend)


def grade(learner: ModuleType) -> Iterator[LessonMark]:
    """The outputs, also of large scores, and the largest tensor."""
    given = [torch.randn(2, 512, 32) for _ in range(3)]
    exact = _exact(given)
    with LargestTensor() as largest:
        found = solution(learner)(*given)
    yield right(found, exact)
    huge = [given[0] * 100, *given[1:]]
    exact = _exact(huge)
    away = relative_error(solution(learner)(*huge), exact)
    yield marked("relative error where scores are large", away, "at most", 1e-3)
    wanted = 2 * 512 * 64 * 4
    yield marked("bytes of the largest tensor", largest.nbytes, "at most", wanted)
    # Work in NumPy, or by an operator that attends, is not seen to be done.
    yield marked("products of matmuls", largest.products, "at least", 2 * 2 * 512 * 512 * 32)
