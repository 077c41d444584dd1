"""What each input of a linear layer adds to its output: the worth of what produces it.

A neuron or a head is seen by one matrix W alone, the one that reads it. Of input j:

    magnitude   ‖W:ⱼ‖²
    wanda       ‖W:ⱼ‖² · ‖xⱼ‖², the energy of what it adds to the output over calibration
    taylor      Σᵢ (Wᵢⱼ · ∂L/∂Wᵢⱼ)²   (arXiv 1906.10771, equation 8, for a group)

Squares add up: the worth of a head is the sum over its inputs.
"""

from __future__ import annotations

from torch import Tensor

from ridgeline.compress.watching.seen import Seen
from ridgeline.errors import InputError
from ridgeline.records.scheme import Pruning


def worth(
    weight: Tensor, pruning: Pruning, seen: Seen | None, importance: Tensor | None = None
) -> Tensor:
    """Of each input, [in] float32.

    Args:
        weight: [out, in] of the matrix that reads the inputs.
        pruning: Its criterion.
        seen: `square_norm`, with "wanda".
        importance: [out, in] of `taylor.importance`, with "taylor".

    Raises:
        InputError: The criterion is one for single weights.
    """
    energy = weight.float().square().sum(dim=0)
    match pruning.criterion:
        case "magnitude":
            return energy
        case "wanda":
            assert seen is not None
            assert seen.square_norm is not None, "calibration was to gather square_norm"
            return energy * seen.square_norm.float()
        case "taylor":
            assert importance is not None, "taylor.importance goes through the whole model"
            return importance.float().sum(dim=0)
        case "sparsegpt":
            raise InputError(
                f"sparsegpt repairs single weights and does not rank {pruning.structure}; choose"
                " wanda, magnitude or taylor"
            )
