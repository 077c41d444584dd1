"""How much a unit of channels is worth: that of all weights which would go with it.

    magnitude   Σ w²                 (the group norm of DepGraph, arXiv 2301.12900)
    taylor      Σ (w · ∂L/∂w)²       (arXiv 1906.10771, equation 8, for a group)

over the rows of convolutions and linear layers that make the channels and the columns that read
them. Divided by the mean of the family, so that layers of different scale compare.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ridgeline.compress.pruning.channels.coupling import Coupling

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
    """Of the units of each family, in the order of `found.families`; their mean is 1.

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
    answers = []
    for family in found.families:
        own = total[family.units]
        mean = own.mean()
        answers.append(own / mean if mean > 0 else own)
    return answers


@torch.no_grad()
def magnitudes(model: nn.Module, names: Sequence[str]) -> dict[str, Tensor]:
    """w² of weights."""
    return {name: model.get_parameter(name).float().square() for name in names}
