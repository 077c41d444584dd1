"""The list of operators and the training model count the same FLOPs (decision 5)."""

from __future__ import annotations

import numpy as np
import pytest

from ridgeline.cost.operators import model_operators
from ridgeline.cost.training.estimate import estimate_training
from ridgeline.cost.training.layouts import stack_layouts
from ridgeline.cost.training.workload import Workload
from ridgeline.hardware.cluster import parse_cluster
from ridgeline.models import load_model
from ridgeline.plan.training.coefficients import coefficients_for
from ridgeline.records.layout import Layout

SEQ = 4096


@pytest.mark.parametrize(
    "name", ["llama-3-8b", "llama-2-70b", "gpt2-xl", "mixtral-8x7b", "qwen3-8b", "deepseek-v3"]
)
def test_both_counts_agree_on_the_flops_of_a_training_step(name: str) -> None:
    model, cluster = load_model(name), parse_cluster("1xh100")
    seq = min(SEQ, model.max_positions or SEQ)
    found = estimate_training(
        model,
        cluster,
        Workload(seq=seq),
        stack_layouts([Layout(micro_batch=4, global_batch=4)]),
        coefficients_for(cluster.device),
    )
    listed = 0.0
    for one in model_operators(model, seq, 4):
        if one.kind == "elementwise":
            continue
        # Model FLOPs leave out the scores that a fused backward computes again: 2, not 2.5.
        again = 4 / 5 if one.kind == "attention" and one.direction == "backward" else 1.0
        listed += one.flops * one.count * again
    assert float(np.ravel(found.model_flops)[0]) == pytest.approx(listed, rel=0.02)
