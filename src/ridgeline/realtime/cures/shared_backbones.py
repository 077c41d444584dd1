"""Encoders with equal weights that look at equal images compute once, and all heads take that.

Three tasks that were developed apart bring three copies of one pre-trained encoder along. With E
for an encoder and H for all heads, n E + H becomes E + H (`cost/backbone_sharing.py`).
"""

from __future__ import annotations

import math
from collections import defaultdict
from typing import TYPE_CHECKING

from ridgeline.realtime.cures import CureCard, CureStage, Fit, option_number, option_text
from ridgeline.realtime.results import ROUNDING
from ridgeline.realtime.rewriting.layers import Rank, lay
from ridgeline.realtime.rewriting.modules import find_modules
from ridgeline.records.ledger import Options

if TYPE_CHECKING:
    from ridgeline.realtime.pipeline import Pipeline
    from ridgeline.realtime.rewriting.observe import ObservedModule, ObservedPipeline

CARD = CureCard(
    name="shared-backbones",
    title="One backbone for encoders of equal weights",
    costs="Heads get the same tensor: one that writes into its input changes the others'.",
    source="hard parameter sharing: Caruana, Multitask Learning, Machine Learning 28, 1997",
    stage=CureStage.GRAPH,
    freedom=ROUNDING,
)


def applies(pipeline: Pipeline, seen: ObservedPipeline) -> Fit:
    """Several modules have equal weights and get equal inputs."""
    groups: dict[tuple[str, frozenset[str]], list[ObservedModule]] = defaultdict(list)
    for one in seen.modules:
        if one.tensors_only and one.parameters and not one.parts_layered and not one.ranks:
            groups[one.digest, one.inputs].append(one)
    twins = [group for group in groups.values() if len(group) > 1]
    every = [one for group in twins for one in group]
    outer = [group for group in twins if not any(group[0].is_inside(one) for one in every)]
    saved = sum(sum(one.seconds_per_frame for one in group[1:]) for group in outer)
    if not outer or seen.share(saved) < 0.01:
        return Fit(reason="no two modules of equal weights see equal inputs")
    calls = max(math.ceil(one.calls_per_frame) for group in outer for one in group)
    text = "; ".join(", ".join(one.name for one in group) for group in outer)
    return Fit(({"groups": text, "answers": 2 * calls},))


def apply(pipeline: Pipeline, options: Options) -> Pipeline:
    """Lay one memory around the modules of each group."""
    from ridgeline.realtime.rewriting.shared_answers import AnswerMemory

    most = option_number(options, "answers", 1)
    for group in option_text(options, "groups").split(";"):
        memory = AnswerMemory(most)
        for module in find_modules(pipeline, group).values():
            lay(module, Rank.SHARE, memory)
    return pipeline
