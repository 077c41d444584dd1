"""Forwards whose gradients nobody uses, without them.

A line on which every call of a model was seen to record a graph for nobody runs under
`torch.no_grad()`: no nodes, no kept activations, and no backward through a target network or a
teacher. The numbers are the same. Where a later step would have used one of these graphs after all,
its backward fails, the measurement with it, and the technique is not kept. Lines that were changed
since they were looked at are left alone.
"""

from __future__ import annotations

import contextlib
import linecache
import os
import zlib
from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from ridgeline.measure.child.points import Points
from ridgeline.patches import Undo
from ridgeline.records import Site
from ridgeline.records.edits import Edit, WrapWith
from ridgeline.records.ledger import Options
from ridgeline.techniques import Applicability, Card, Context, Gain, Stage, amdahl

if TYPE_CHECKING:
    from torch import nn

CARD = Card(
    name="no-unused-graph",
    title="No graphs that nobody goes back through",
    cures=("unused-graph",),
    costs="What is called on these lines can be part of no backward.",
    source="PyTorch documentation, Autograd mechanics, Locally disabling gradient computation",
    equivalence="bit-equal",
    stage=Stage.SETTINGS,
    breaks_with=("does not require grad",),
    required={"lines": str, "checksum": str},
)

_BETWEEN = "; "
_FELT = 0.01
"""Share of a step in such forwards from which on they are worth a line."""


def applies(context: Context) -> Applicability:
    """Some lines record graphs for nobody, and it is felt."""
    if context.profile.kind != "training":
        return Applicability(False, "the script does not train")
    if not context.profile.unused_graphs:
        return Applicability(False, "no line was seen whose every graph is of no use")
    share = _forward(context) + _backward(context)
    if share < _FELT:
        return Applicability(False, f"graphs that nobody uses take {share:.1%} of a step")
    return Applicability(True, "")


def predict(context: Context, options: Options) -> Gain:
    """Recording goes, and a backward that only weights without an optimizer are found in."""
    recording = amdahl(_forward(context), 1.03, 1.1 + 0.4 * context.profile.small_operator_share)
    backward = amdahl(_backward(context), 1.5, 50.0)
    return Gain(recording.low * backward.low, recording.high * backward.high)


def options(context: Context) -> list[Options]:
    """The lines, and a checksum of what stands on them."""
    lines = list(dict.fromkeys(map(str, _lines(context))))
    return [{"lines": _BETWEEN.join(lines), "checksum": _checksum(lines)}]


def apply(points: Points, options: Options) -> Undo:
    """Switch gradients off during each outermost call from one of these lines."""
    import torch

    from ridgeline.measure.child.sites import START_FOLDER, user_site

    lines = frozenset(str(options["lines"]).split(_BETWEEN))
    if _checksum(lines, START_FOLDER) != options["checksum"]:
        points.refuse(CARD.name, "its lines have changed since they were looked at")
        return lambda: None

    def around(module: nn.Module) -> AbstractContextManager[Any]:
        if not torch.is_grad_enabled() or str(user_site()) not in lines:
            return contextlib.nullcontext()
        points.changed(CARD.name, f"no graph is recorded at {', '.join(sorted(lines))}")
        return torch.no_grad()

    points.around_forward.append(around)
    return lambda: points.around_forward.remove(around)


def edits(context: Context, options: Options) -> list[Edit]:
    """`with torch.no_grad():` around each of these lines."""
    return [WrapWith(site=line, header="torch.no_grad()") for line in _lines(context)]


def _checksum(lines: Iterable[str], folder: str = "") -> str:
    """A checksum of the text of lines that are written as `file:line`, without indentation."""
    places = (line.rpartition(":") for line in sorted(lines))
    text = "\n".join(
        linecache.getline(os.path.join(folder, file), int(number)).strip()
        for file, _, number in places
    )
    return f"{zlib.crc32(text.encode()):08x}"


def _lines(context: Context) -> list[Site]:
    return [line.site for line in context.profile.unused_graphs]


def _forward(context: Context) -> float:
    share = sum(line.forward_share for line in context.profile.unused_graphs)
    return share * context.phase_share("forward")


def _backward(context: Context) -> float:
    share = sum(line.forward_share for line in context.profile.unused_graphs if line.in_backward)
    return share * context.phase_share("backward")
