"""How unevenly tokens fall on devices among which whole experts are dealt out."""

from __future__ import annotations

import math
from statistics import NormalDist

from ridgeline.models.spec import ModelSpec


def expert_imbalance(model: ModelSpec, groups: int) -> float:
    """The largest of so many groups' sums, over their mean and one expert's standard deviation.

    The largest of g normal samples lies z standard deviations above the mean on average (Blom,
    "Statistical estimates and transformed beta-variables", 1958), and the mean of k experts varies
    by the root of k less than one.

    >>> from ridgeline.models import load_model
    >>> round(expert_imbalance(load_model("Qwen3-235B-A22B"), 8), 2)
    0.36
    """
    if model.experts is None or groups == 1:
        return 0.0
    largest = NormalDist().inv_cdf((groups - 0.375) / (groups + 0.25))
    return largest / math.sqrt(model.experts.num_experts / groups)
