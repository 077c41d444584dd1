"""Each weight rounded up or down, whichever the layer's outputs lose least by.

Nagel et al., "Up or Down? Adaptive Rounding for Post-Training Quantization", arXiv 2004.10568. The
level is ⌊w / s⌋ + h(V) with h a rectified sigmoid (equations 22 and 23), and what is minimised is
the squared error of the layer's outputs on calibration inputs plus λ Σ 1 − |2 h − 1|^β (equation
24), β falling from 20 to 2, so that every h ends at 0 or 1. Layer by layer, on patches of the
layer's inputs, for convolutions of any grouping and linear layers; scales stay as they were.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor, fx

from ridgeline.checkpoints.quantised import Quantised
from ridgeline.compress.vision.batches import Batch
from ridgeline.compress.vision.graph import run_watched
from ridgeline.compress.vision.layers import VisionLayer
from ridgeline.compress.vision.nodes import as_rows
from ridgeline.compress.vision.operators import constant_of
from ridgeline.compress.vision.weights import patches
from ridgeline.kernels.number_formats.integer import bounds

STEPS = 600
_BATCH = 256
_LEARNING_RATE = 1e-2
_WEIGHT = 0.01
"""λ, as in the paper's experiments."""
_STRETCH, _SHIFT = 1.2, -0.1
"""ζ − γ and γ of the rectified sigmoid (Louizos et al., arXiv 1712.01312)."""
_WARM = 0.2
"""Share of the steps without the term that pushes h to 0 and 1."""
_ROWS = 2048


def rounded_by_adaround(
    graph: fx.GraphModule,
    layers: Sequence[VisionLayer],
    nearest: Mapping[str, Quantised],
    batches: Sequence[Batch],
    *,
    on_progress: Callable[[str], None] = lambda _: None,
) -> dict[str, Quantised]:
    """The levels of all layers with weights.

    Args:
        graph: In float.
        layers: To round.
        nearest: Their levels to nearest, whose scales stay.
        batches: Calibration images.
        on_progress: Told each layer.
    """
    chosen = {one.node: one for one in layers if one.name in nearest and one.axis == 0}
    reads: dict[fx.Node, list[fx.Node]] = {}
    for node, layer in chosen.items():
        reads.setdefault(layer.inputs[0], []).append(node)
    rows: dict[fx.Node, list[Tensor]] = {node: [] for node in chosen}

    def note(node: fx.Node, value: object) -> None:
        for reader in reads.get(node, ()):
            assert isinstance(value, Tensor)
            seen = patches(reader, value, chosen[reader], graph)
            rows[reader].append(seen[:: max(1, len(seen) * len(batches) // _ROWS)].clone())

    run_watched(graph, batches, note)
    found = dict(nearest)
    for number, (node, layer) in enumerate(chosen.items(), start=1):
        on_progress(f"rounding {layer.name} ({number}/{len(chosen)})")
        weight = constant_of(graph, layer.weight)
        assert weight is not None
        inputs = torch.cat(rows.pop(node))
        found[layer.name] = _learned(weight.float(), nearest[layer.name], inputs, layer.groups)
    return found


def _learned(weight: Tensor, nearest: Quantised, inputs: Tensor, groups: int) -> Quantised:
    """The levels of one layer; inputs [rows, in · kernel]."""
    depth = inputs.shape[1] // groups
    scales = nearest.scales.float()
    exact = as_rows(weight, 0).view(groups, -1, depth)
    steps = (as_rows(weight, 0) / scales).view(groups, -1, depth)
    step = scales.view(groups, -1, 1)
    below = steps.floor()
    # h(V) begins at the weight's own place between its two levels.
    begin = (((steps - below).clamp(0.01, 0.99) - _SHIFT) / _STRETCH).logit()
    grouped = inputs.view(len(inputs), groups, depth).transpose(0, 1).contiguous()
    lowest, highest = bounds(nearest.format.bits)
    with torch.enable_grad():
        free = begin.clone().requires_grad_()
        optimiser = torch.optim.Adam([free], lr=_LEARNING_RATE)
        generator = torch.Generator().manual_seed(0)
        scale = float(torch.bmm(grouped, exact.transpose(1, 2)).square().mean().clamp_min(1e-12))
        for number in range(STEPS):
            picked = torch.randint(0, len(inputs), (_BATCH,), generator=generator)
            h = _rectified(free)
            wrong = ((below + h).clamp(lowest, highest) * step) - exact
            lost = torch.bmm(grouped[:, picked], wrong.transpose(1, 2)).square().mean() / scale
            done = (number / STEPS - _WARM) / (1 - _WARM)
            if done >= 0:
                sharpness = 2 + 18 * (1 - done)
                lost = lost + _WEIGHT * (1 - (2 * h - 1).abs().pow(sharpness)).mean()
            optimiser.zero_grad()
            lost.backward()
            optimiser.step()
    levels = (below + (_rectified(free.detach()) >= 0.5)).clamp(lowest, highest)
    learned = replace(nearest, levels=levels.view_as(nearest.levels).to(torch.int8))
    return min((nearest, learned), key=lambda one: _error(one, exact, step, grouped))


def _rectified(free: Tensor) -> Tensor:
    return (free.sigmoid() * _STRETCH + _SHIFT).clamp(0, 1)


def _error(found: Quantised, exact: Tensor, step: Tensor, inputs: Tensor) -> float:
    """The squared error of the layer's outputs: what was learned is kept only if it is less."""
    wrong = found.levels.float().view_as(exact) * step - exact
    return float(torch.bmm(inputs, wrong.transpose(1, 2)).square().sum())
