"""Which channels go: the least of each layer, or of all layers together; never all of one."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch

from ridgeline.compress.pruning.channels.coupling import Family
from ridgeline.compress.pruning.channels.labels import Array
from ridgeline.compress.pruning.channels.worth import Worth
from ridgeline.compress.pruning.structured.neurons import MULTIPLE
from ridgeline.errors import InputError
from ridgeline.kernels.masks import keep_largest
from ridgeline.records.scheme import Pruning


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
    """Of each family, before rounding."""
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
