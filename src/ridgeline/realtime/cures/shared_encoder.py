"""Encoders that their author declared as interchangeable: the first stands in for all.

For encoders that were trained apart, or fine-tuned from one start: the heads see features that they
were not trained on, so that it is held against the pipeline's own figures of merit.
"""

from __future__ import annotations

import math
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from ridgeline.realtime.cures import CureCard, CureStage, Fit, option_number, option_text
from ridgeline.realtime.declared import hints_of
from ridgeline.realtime.rewriting.graph import innermost
from ridgeline.realtime.rewriting.layers import Inner, Rank, lay
from ridgeline.realtime.rewriting.modules import find_modules
from ridgeline.records.ledger import Options

if TYPE_CHECKING:
    from torch import nn

    from ridgeline.realtime.pipeline import Pipeline
    from ridgeline.realtime.rewriting.observe import ObservedPipeline

CARD = CureCard(
    name="shared-encoder",
    title="One encoder where its author allows it",
    costs="Heads work on features of an encoder that is not the one they were trained with.",
    source="declared: ridgeline.realtime.declared.declare(…, encoder=…, shared_as=…)",
    stage=CureStage.GRAPH,
    freedom=0.05,
)


def applies(pipeline: Pipeline, seen: ObservedPipeline) -> Fit:
    """Two stages declare an encoder under one word, and both were called."""
    groups: dict[str, list[str]] = defaultdict(list)
    for name, code in pipeline.code.items():
        hints = hints_of(innermost(code.call))
        if hints.encoder is not None:
            groups[hints.shared_as].append(f"{name}:{hints.encoder}")
    used = {one.name: one for one in seen.modules if not one.ranks}
    chosen = [
        group
        for names in groups.values()
        if len(group := [name for name in names if name in used]) > 1
    ]
    if not chosen:
        return Fit(reason="no stages declare an encoder that they may share")
    calls = max(math.ceil(used[name].calls_per_frame) for group in chosen for name in group)
    text = "; ".join(", ".join(group) for group in chosen)
    return Fit(({"groups": text, "answers": 2 * calls},))


def apply(pipeline: Pipeline, options: Options) -> Pipeline:
    """The first module of each group answers for the others, from one memory."""
    from ridgeline.realtime.rewriting.shared_answers import AnswerMemory

    most = option_number(options, "answers", 1)
    for group in option_text(options, "groups").split(";"):
        first, *others = find_modules(pipeline, group).values()
        lay(first, Rank.SHARE, AnswerMemory(most))
        for module in others:
            lay(module, Rank.SHARE, _stand_in(first))
    return pipeline


def _stand_in(first: nn.Module) -> Inner:
    def answer(inner: Inner, *args: Any, **kwargs: Any) -> Any:
        del inner
        return first(*args, **kwargs)

    return answer
