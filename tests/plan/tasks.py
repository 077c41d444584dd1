"""Small models, clusters and spaces that the planner's tests share."""

from __future__ import annotations

from ridgeline.cost.training.workload import Workload
from ridgeline.hardware.cluster import parse_cluster
from ridgeline.models.spec import Experts, ModelSpec
from ridgeline.plan.training.coefficients import coefficients_for
from ridgeline.plan.training.enumeration import Space
from ridgeline.plan.training.task import TrainingTask


def a_model(**changes: object) -> ModelSpec:
    """Grouped queries, a gated MLP: the shape of a 1.5 B Llama."""
    usual: dict[str, object] = {
        "name": "small", "family": "llama", "layers": 12, "hidden": 2048, "heads": 16,
        "kv_heads": 4, "head_dim": 128, "ffn": 8192, "gated_mlp": True, "vocab": 32_000,
    }  # fmt: skip
    return ModelSpec(**{**usual, **changes})  # type: ignore[arg-type]


def a_mixture() -> ModelSpec:
    """The same with eight experts."""
    return a_model(name="mixture", experts=Experts(num_experts=8, top_k=2, ffn=4096))


def a_task(
    cluster: str = "16xH100", *, model: ModelSpec | None = None, global_batch: int = 32,
    seq: int = 2048,
) -> TrainingTask:  # fmt: skip
    where = parse_cluster(cluster)
    return TrainingTask(
        model=model or a_model(),
        cluster=where,
        workload=Workload(seq=seq),
        global_batch=global_batch,
        precisions=("bf16",),
        coefficients=coefficients_for(where.device),
    )


def a_space(**changes: object) -> Space:
    usual: dict[str, object] = {
        "model": a_model(), "num_devices": 16, "widest_tensor": 8, "global_batch": 32,
        "seq": 2048, "capacity_bytes": 80e9,
    }  # fmt: skip
    return Space(**{**usual, **changes})  # type: ignore[arg-type]
