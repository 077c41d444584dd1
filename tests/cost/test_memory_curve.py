"""Memory over a step: its peak is the estimate's, and checkpoints trade it for time."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline.hardware.cluster import parse_cluster
from ridgeline.plan.training.estimate import predict_training
from ridgeline.plan.training.filled_layout import filled_layout
from ridgeline.plan.training.memory_curve import predict_memory
from ridgeline.records.layout import Recompute

CLUSTER = parse_cluster("8xH100")


@settings(max_examples=25)
@given(
    st.sampled_from(["none", "selective", "full"]),
    st.integers(0, 3),
    st.sampled_from([1, 2]),
    st.sampled_from([1, 2, 4]),
    st.sampled_from(["GPT-3-1.3B", "Llama-3-8B"]),
)
def test_the_peak_of_a_step_that_accumulates_is_that_of_the_estimate(
    recompute: Recompute, zero: int, micro_batch: int, tp: int, model: str
) -> None:
    layout = filled_layout(
        CLUSTER, tp=tp, zero=zero, micro_batch=micro_batch, global_batch=64, recompute=recompute
    )
    curve = predict_memory(model, CLUSTER, layout=layout, checkpoint=recompute, seq=2048)
    estimate = predict_training(model, CLUSTER, layout=layout, seq=2048)
    assert curve.peak.total_bytes == pytest.approx(estimate.memory.peak_bytes, rel=1e-9)
    assert curve.verdict == estimate.memory.verdict
    assert sum(curve.peak.terms.values()) == pytest.approx(curve.peak.total_bytes)
    times = [moment.seconds for moment in curve.moments]
    assert times == sorted(times)


@pytest.mark.parametrize("model", ["Llama-3-8B", "GPT-3-13B"])
def test_gradients_come_to_life_in_the_only_backward_pass(model: str) -> None:
    layout = filled_layout(CLUSTER, zero=3, micro_batch=8, global_batch=64)
    curve = predict_memory(model, CLUSTER, layout=layout, seq=1024)
    assert curve.moments[0].terms.get("gradients", 0.0) == 0.0
    assert curve.moments[-1].terms["gradients"] > 0
    estimate = predict_training(model, CLUSTER, layout=layout, seq=1024)
    assert curve.peak.total_bytes <= estimate.memory.peak_bytes * (1 + 1e-9)


def test_fewer_kept_activations_cost_time_and_segments_keep_the_fewest_inputs() -> None:
    layout = filled_layout(CLUSTER, zero=3, micro_batch=4, global_batch=256)
    found = predict_memory("Llama-3-8B", CLUSTER, layout=layout, seq=8192)
    peaks = {one.checkpoint: one for one in found.others}
    assert peaks["none"].peak_bytes > peaks["full"].peak_bytes
    assert peaks["none"].seconds < peaks["full"].seconds == peaks["sqrt"].seconds
    assert peaks["none"].activations_freed == peaks["none"].pass_ratio == 1.0
    # What textbooks say of it: a third more work, and five to ten times fewer activations.
    assert 5 < peaks["sqrt"].activations_freed < 10
    assert peaks["full"].activations_freed > peaks["sqrt"].activations_freed
    assert peaks["sqrt"].pass_ratio == pytest.approx(4 / 3, abs=0.03)
    assert 1.0 < peaks["selective"].pass_ratio < peaks["sqrt"].pass_ratio
    sqrt = predict_memory("Llama-3-8B", CLUSTER, layout=layout, seq=8192, checkpoint="sqrt")
    full = predict_memory("Llama-3-8B", CLUSTER, layout=layout, seq=8192, checkpoint="full")

    def kept(curve: object) -> float:
        moments = [one for one in curve.moments if one.phase == "forward"]  # type: ignore[attr-defined]
        return moments[-1].terms["activations"]

    assert kept(sqrt) == pytest.approx(kept(full) * 6 / 32)
