"""Which channels are pruned: the least of each layer, or of all layers together; never all of one.

A unit of channels is worth what all weights are that would go with it:

    magnitude   Σ w²                 (the group norm of DepGraph, arXiv 2301.12900)
    taylor      Σ (w · ∂L/∂w)²       (arXiv 1906.10771, equation 8, for a group)

over the rows of convolutions and linear layers that make the channels and the columns that read
them. Divided by the mean of the family, so that layers of different scale compare.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from ridgeline.compress.pruning.channels.coupling import Coupling, Family
from ridgeline.compress.pruning.channels.reading import Array
from ridgeline.compress.pruning.structured.units import MULTIPLE
from ridgeline.errors import InputError
from ridgeline.kernels.masks import keep_largest
from ridgeline.records.scheme import Pruning

Worth = NDArray[np.float64]


def weights_of(model: nn.Module, found: Coupling) -> list[str]:
    """Weights of convolutions and linear layers in which channels lie that can go."""
    parameters = dict(model.named_parameters())
    return [
        name
        for name, slots in found.slots.items()
        if name in parameters
        and parameters[name].ndim > 1
        and any(units.any() for units in slots.values())
    ]


def worth(found: Coupling, squares: Mapping[str, Tensor]) -> list[Worth]:
    """The worth of the units of each family, in the order of `found.families`; their mean is 1.

    Args:
        found: Of the module.
        squares: Weight → w² or (w · ∂L/∂w)², of the weight's shape.
    """
    size = 1 + max((int(one.units.max()) for one in found.families), default=0)
    total = np.zeros(size)
    for name, square in squares.items():
        for dim, units in found.slots[name].items():
            others = [axis for axis in range(square.ndim) if axis != dim]
            sums = square.double().sum(dim=others).cpu().numpy()
            np.add.at(total, np.where(units < size, units, 0), sums)
    results = []
    for family in found.families:
        own = total[family.units]
        mean = own.mean()
        results.append(own / mean if mean > 0 else own)
    return results


@torch.no_grad()
def magnitudes(model: nn.Module, names: Sequence[str]) -> dict[str, Tensor]:
    """The squares w² of weights, by name."""
    return {name: model.get_parameter(name).float().square() for name in names}


def going(
    families: Sequence[Family], worths: Sequence[Worth], pruning: Pruning, multiple: int = MULTIPLE
) -> Array:
    """Units that go, in order.

    With "layer" the share is of each family, with "global" of the units of all of them. A family
    keeps `multiple` channels at least, or one unit.

    Args:
        families: What competes.
        worths: Of the units of each.
        pruning: Its share and scope.
        multiple: That widths are rounded to.

    Raises:
        InputError: There is nothing that could go.
    """
    if not families:
        raise InputError("no channel of this model can go without changing what others compute")
    removed = _removed(worths, pruning)
    gone = []
    for family, own, count in zip(families, worths, removed, strict=True):
        kept = _rounded(len(own) - count, family, multiple)
        stays = keep_largest(torch.from_numpy(own), len(own) - kept).numpy()
        gone.append(family.units[~stays])
    return np.sort(np.concatenate(gone))


def _removed(worths: Sequence[Worth], pruning: Pruning) -> list[int]:
    """The units that go of each family, before rounding."""
    if pruning.scope == "layer":
        return [round(pruning.share * len(own)) for own in worths]
    together = torch.from_numpy(np.concatenate(worths))
    goes = ~keep_largest(together, round(pruning.share * len(together)))
    return [int(part.sum()) for part in goes.split([len(own) for own in worths])]


def _rounded(kept: int, family: Family, multiple: int) -> int:
    """Units that a family keeps."""
    count = len(family.units)
    step = multiple // math.gcd(multiple, family.width)
    if count % step:
        step = 1
    return min(count, max(step, round(kept / step) * step))


@torch.no_grad()
def flops(model: nn.Module, example: tuple[Tensor, ...]) -> int:
    """Floating-point operations of one call, two per multiplication and addition.

    As torch.utils.flop_counter counts: norms, activations and pooling are left out.
    """
    counter = FlopCounterMode(display=False)
    # its tracker of modules hooks views of parameters, which have no gradient function in no_grad
    learned = [one for one in model.parameters() if one.requires_grad]
    try:
        for one in learned:
            one.requires_grad_(requires_grad=False)
        with counter:
            model(*example)
    finally:
        for one in learned:
            one.requires_grad_()
    return int(counter.get_total_flops())
