"""Dropout with sixteen random bits for an element, where torch is slow to draw its masks.

On CPUs torch draws a number in double precision for every element. On a graph network over 2,700
papers of 1,433 words that took 42 of the 58 ms of a step, in BERT's attention a fifth.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from ridgeline.measure.child.points import Points
from ridgeline.patches import Undo, in_reverse, patch
from ridgeline.records.edits import AtStart, Edit
from ridgeline.records.ledger import Options
from ridgeline.techniques import Applicability, Card, Context, Gain, Stage, amdahl, source_of_kernel

CARD = Card(
    name="sixteen-bit-dropout",
    title="Dropout masks of sixteen bits",
    cures=("unfused-elementwise", "unfused-attention"),
    costs="Other random numbers; the probability is rounded to a 65,536th.",
    source="Srivastava et al., Dropout, JMLR 15, 2014, section 4; here by a threshold on integers",
    equivalence="statistical",
    stage=Stage.SETTINGS,
)

_DRAWS = ("aten::bernoulli_", "aten::bernoulli", "aten::native_dropout")
_ASSIGNED = (
    "torch.nn.functional.dropout = sixteen_bit_dropout\n"
    "torch.nn.functional.scaled_dot_product_attention = sixteen_bit_attention"
)


def applies(context: Context) -> Applicability:
    """Drawing masks is felt, on a CPU."""
    if context.device != "cpu":
        return Applicability(False, f"the model is on {context.device}, which draws masks quickly")
    share = context.operator_share(*_DRAWS)
    if share < 0.02:
        return Applicability(False, f"masks of dropout take {share:.1%} of a step")
    return Applicability(True, "")


def predict(context: Context, options: Options) -> Gain:
    """A draw takes a fifth; passing the mask through memory stays."""
    return amdahl(context.operator_share(*_DRAWS), 1.5, 5.0)


def apply(points: Points, options: Options) -> Undo:
    """Put both in the place of torch's."""
    from ridgeline.kernels import sixteen_bit_dropout as ours

    def drops(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def dropout(
            input: Any,  # noqa: A002 - as torch calls it
            p: float = 0.5,
            training: bool = True,
            inplace: bool = False,
        ) -> Any:
            if not ours.takes_sixteen_bits(input, p, training):
                return original(input, p, training, inplace)
            points.changed(CARD.name, "masks drawn from sixteen bits an element")
            return ours.sixteen_bit_dropout(input, p, training, inplace)

        return dropout

    def attends(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def attention(query: Any, *args: Any, **kwargs: Any) -> Any:
            p = kwargs.get("dropout_p", args[3] if len(args) > 3 else 0.0)
            if not ours.takes_sixteen_bits(query, p, training=True):
                return original(query, *args, **kwargs)
            points.changed(CARD.name, "masks drawn from sixteen bits an element")
            return ours.sixteen_bit_attention(query, *args, **kwargs)

        return attention

    return in_reverse(
        [
            patch("torch.nn.functional:dropout", drops),
            patch("torch.nn.functional:scaled_dot_product_attention", attends),
        ]
    )


def edits(context: Context, options: Options) -> list[Edit]:
    """The functions themselves, in the place of torch's: layers call those."""
    code = source_of_kernel("sixteen_bit_dropout")
    return [AtStart(files=context.files, code=f"{code}\n\n\n{_ASSIGNED}")]
