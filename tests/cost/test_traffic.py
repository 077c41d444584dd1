"""The bytes that a device sends in a step, against the volumes of the textbook."""

from __future__ import annotations

import pytest

from ridgeline.cost.collective_volume import all_gather_bytes, all_reduce_bytes
from ridgeline.hardware.cluster import parse_cluster
from ridgeline.models import load_model, parameter_count
from ridgeline.plan.training.estimate import predict_training
from ridgeline.plan.training.filled_layout import filled_layout
from ridgeline.plan.training.stacks import stack

CLUSTER = parse_cluster("8xH100")
MODEL = "GPT-3-1.3B"


def sent(**knobs: object) -> dict[str, float]:
    layout = filled_layout(CLUSTER, global_batch=64, **knobs)  # type: ignore[arg-type]
    return predict_training(MODEL, CLUSTER, seq=2048, layout=layout).sent_bytes


def parameters() -> float:
    return float(parameter_count(load_model(MODEL)))


def test_replicas_all_reduce_their_gradients() -> None:
    plain = sent(zero=0)
    per_parameter = plain["data"] / all_reduce_bytes(8, parameters())
    assert per_parameter == pytest.approx(stack("torch").reduce_bytes, rel=0.01)
    assert all(size == 0 for name, size in plain.items() if name != "data")


def test_zero_1_scatters_gradients_and_gathers_weights_once() -> None:
    plain, sharded = sent(zero=0), sent(zero=1)
    weights = all_gather_bytes(8, 2.0 * parameters())
    assert sharded["data"] == pytest.approx(plain["data"] / 2 + weights, rel=0.01)


def test_zero_3_gathers_weights_twice_in_each_micro_batch() -> None:
    one, many = sent(zero=3, micro_batch=8), sent(zero=3, micro_batch=1)
    assert many["shards"] == pytest.approx(8 * one["shards"])
    gradients = sent(zero=0)["data"] / 2
    weights = all_gather_bytes(8, 2.0 * parameters())
    assert one["shards"] == pytest.approx(2 * weights + gradients, rel=0.01)
    assert one["data"] == 0


def test_tensor_ranks_all_reduce_the_stream_four_times_in_a_layer() -> None:
    spec = load_model(MODEL)
    stream = 2048 * spec.hidden * 2.0
    found = sent(tp=2, zero=0)["tensor"]
    assert found == pytest.approx(16 * spec.layers * 4 * all_reduce_bytes(2, stream))


def test_stages_send_the_stream_forward_and_its_gradient_back() -> None:
    spec = load_model(MODEL)
    found = sent(pp=2, zero=0)["pipeline"]
    assert found == pytest.approx(16 * 2 * 2048 * spec.hidden * 2.0)
