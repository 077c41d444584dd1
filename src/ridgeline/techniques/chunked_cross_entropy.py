"""The loss over a vocabulary taken a few rows at a time, so that only its gradient is a matrix.

Log-probabilities, zeros with one entry a row, and what comes back from them are matrices of
tokens × vocabulary that torch writes to memory and reads again.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from ridgeline.measure.child.points import Points
from ridgeline.patches import Undo, patch
from ridgeline.records.edits import AtStart, Edit, FirstOf, ReplaceCall
from ridgeline.records.ledger import Options
from ridgeline.techniques import Applicability, Card, Context, Gain, Stage, amdahl, source_of_kernel

CARD = Card(
    name="chunked-cross-entropy",
    title="Cross-entropy in chunks of rows",
    cures=("unfused-elementwise",),
    costs="Sums in another order; the logits stay alive until the backward.",
    source="Hsu et al., Liger Kernel, 2024; Milakov and Gimelshein 2018",
    equivalence="rounding",
    stage=Stage.SETTINGS,
)

_OF_THE_LOSS = (
    "aten::_log_softmax", "aten::_log_softmax_backward_data", "aten::nll_loss_forward",
    "aten::nll_loss_backward",
)  # fmt: skip
_MANY_CLASSES = 1024
"""For fewer, the matrices fit in a cache."""


def applies(context: Context) -> Applicability:
    """Training spends a part of its time in the loss over many classes, outside of compile."""
    if context.profile.kind == "inference":
        return Applicability(False, "the script does not train")
    share = _share(context)
    if share < 0.02:
        return Applicability(False, f"the loss over many classes takes {share:.1%} of a step")
    return Applicability(True, "")


def _share(context: Context) -> float:
    loss = [op for op in context.profile.operators if op.name in _OF_THE_LOSS]
    seconds = sum(
        op.seconds for op in loss if op.dtype == "float32" and _has_many_classes(op.input_shapes())
    )
    return min(1.0, seconds / context.profile.step_seconds.mean)


def _has_many_classes(shapes: list[tuple[int, ...]]) -> bool:
    return any(len(shape) == 2 and shape[1] >= _MANY_CLASSES for shape in shapes)


def predict(context: Context, options: Options) -> Gain:
    """About two of four passes over matrices in memory are left."""
    return amdahl(_share(context), 1.2, 3.0)


def apply(points: Points, options: Options) -> Undo:
    """Put it in the place of torch's."""
    from ridgeline.kernels.chunked_cross_entropy import (
        ChunkedCrossEntropy,
        chunked_cross_entropy,
        takes_chunks,
    )

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def cross_entropy(*args: Any, **kwargs: Any) -> Any:
            if not takes_chunks(*args, **kwargs):
                return original(*args, **kwargs)
            points.changed(CARD.name, f"{ChunkedCrossEntropy.elements:,} logits at a time")
            return chunked_cross_entropy(*args, **kwargs)

        return cross_entropy

    return patch("torch.nn.functional:cross_entropy", make)


def edits(context: Context, options: Options) -> list[Edit]:
    """The function itself, and calls of it where the script calls torch's."""
    here = "chunked_cross_entropy({args})"
    everywhere = "torch.nn.functional.cross_entropy = chunked_cross_entropy"
    return [
        AtStart(files=context.files, code=source_of_kernel("chunked_cross_entropy")),
        FirstOf(
            edits=(
                ReplaceCall(files=context.files, callee="cross_entropy", code=here),
                AtStart(files=context.files, code=everywhere),
            )
        ),
    ]
