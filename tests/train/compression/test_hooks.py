"""Schemes as communication hooks of a model that really trains on several ranks."""

from __future__ import annotations

import functools
from typing import Any

import msgspec
import pytest
import torch
from tests.train.compression.rounds import SCHEMES, Toy, recipe, start_weights
from tests.train.processes import run_ranks

from ridgeline.errors import InputError
from ridgeline.records.layout import Layout
from ridgeline.train.compression.wire import attach, check_without_hook
from ridgeline.train.local_sgd import LocalSgd

NUM_ELEMENTS = sum(parameter.numel() for parameter in Toy().parameters())


@pytest.fixture(scope="module")
def four(request: pytest.FixtureRequest) -> list[dict[str, Any]]:
    """Four ranks on two nodes, with the schemes that this run asks for."""
    here = [one for one in request.session.items if one.path == request.path]
    asked = {one.callspec.params.get("name") for one in here if hasattr(one, "callspec")}
    return run_ranks(
        4,
        "tests.train.compression.rounds:asked_hooks",
        [name for name in SCHEMES if name in asked],
        timeout_seconds=150,
        environment={"LOCAL_WORLD_SIZE": "2"},
    )


@pytest.fixture(scope="module")
def interrupted() -> list[dict[str, bool]]:
    return run_ranks(2, "tests.train.compression.rounds:resume_every_hook", timeout_seconds=120)


@pytest.mark.slow
@pytest.mark.multiprocess
@pytest.mark.parametrize("name", SCHEMES)
def test_weights_stay_equal_over_ranks(four: list[dict[str, Any]], name: str) -> None:
    for other in four[1:]:
        assert torch.equal(four[0][name]["weights"], other[name]["weights"])


@pytest.mark.multiprocess
@pytest.mark.sweep("powersgd")
@pytest.mark.parametrize("name", SCHEMES)
def test_a_compressed_run_learns_nearly_as_much(four: list[dict[str, Any]], name: str) -> None:
    first, last = _loss(four, "none", 0), _loss(four, "none", -1)
    learned = (first - _loss(four, name, -1)) / (first - last)
    # Random elements reach each weight once in twenty steps, of sixty.
    assert learned > (0.5 if name == "randomk" else 0.85)
    assert learned < 1.15


def _loss(seen: list[dict[str, Any]], name: str, step: int) -> float:
    window = slice(0, 1) if step == 0 else slice(-5, None)
    losses = [loss for one in seen for loss in one[name]["losses"][window]]
    return sum(losses) / len(losses)


@pytest.mark.multiprocess
def test_compression_begins_when_it_is_told_to(four: list[dict[str, Any]]) -> None:
    for one in four:
        assert one["late"]["losses"][:3] == one["none"]["losses"][:3]
        plain, before, after = (
            one["none"]["traffic"][0],
            one["late"]["traffic"][1],
            one["late"]["traffic"][2],
        )
        assert before == plain
        assert after.sent_bytes < plain.sent_bytes / 10


@pytest.mark.multiprocess
def test_plain_gradients_are_counted_too(four: list[dict[str, Any]]) -> None:
    for traffic in four[0]["none"]["traffic"]:
        assert traffic.payload_bytes == 4 * NUM_ELEMENTS
        assert traffic.sent_bytes == pytest.approx(1.5 * 4 * NUM_ELEMENTS)


@pytest.mark.multiprocess
def test_two_levels_give_the_same_mean_and_send_less_between_nodes(
    four: list[dict[str, Any]],
) -> None:
    torch.testing.assert_close(
        four[0]["hierarchical"]["weights"], four[0]["none"]["weights"], rtol=1e-4, atol=1e-5
    )
    padding = 4 * 4  # bytes; buckets are padded to the ranks of a node
    between = four[0]["hierarchical"]["between"][0].sent_bytes
    assert between == pytest.approx(4 * NUM_ELEMENTS / 2, abs=padding)
    half = four[0]["hierarchical bf16"]["between"][0].sent_bytes
    assert half == pytest.approx(between / 2)


@pytest.mark.slow
@pytest.mark.multiprocess
@pytest.mark.parametrize("name", SCHEMES)
def test_an_interrupted_run_ends_with_the_same_bits(
    interrupted: list[dict[str, bool]], name: str
) -> None:
    for alike in interrupted:
        assert alike[name]


@functools.cache
def alone() -> list[dict[str, Any]]:
    return run_ranks(3, "tests.train.compression.rounds:alone_and_together", timeout_seconds=90)


@pytest.mark.multiprocess
def test_averaging_after_every_step_is_data_parallel_sgd() -> None:
    for one in alone():
        torch.testing.assert_close(one["every step"]["weights"], one["ddp"], rtol=1e-5, atol=1e-6)


@pytest.mark.multiprocess
def test_ranks_differ_between_agreements_and_agree_at_each() -> None:
    runs = [one["average"] for one in alone()]
    assert runs[0]["agreed"] == [False, False, False, True] * 3
    assert not torch.equal(runs[0]["before"][-1], runs[1]["before"][-1])
    for run in runs:
        assert torch.equal(run["weights"], runs[0]["weights"])
    mean = torch.stack([run["before"][-1] for run in runs]).mean(dim=0)
    torch.testing.assert_close(runs[0]["weights"], mean)


@pytest.mark.multiprocess
def test_weights_travel_only_when_ranks_agree() -> None:
    traffic = alone()[0]["average"]["traffic"]
    assert [one.payload_bytes for one in traffic] == [0, 0, 0, 4 * NUM_ELEMENTS] * 3
    assert traffic[3].sent_bytes == pytest.approx(2 * 2 / 3 * 4 * NUM_ELEMENTS)


@pytest.mark.multiprocess
def test_an_outer_step_of_one_without_momentum_is_averaging() -> None:
    one = alone()[0]
    torch.testing.assert_close(
        one["plain outer"]["weights"], one["average"]["weights"], rtol=1e-5, atol=1e-6
    )


@pytest.mark.multiprocess
def test_diloco_follows_its_formula() -> None:
    """Nesterov on the difference, by hand: v ← μ v + Δ, θ ← θ - η (Δ + μ v)."""
    runs = [one["diloco"] for one in alone()]
    agreed, velocity = start_weights(), torch.zeros_like(start_weights())
    for step in (3, 7):
        difference = agreed - torch.stack([run["before"][step] for run in runs]).mean(dim=0)
        velocity = 0.9 * velocity + difference
        agreed = agreed - 0.7 * (difference + 0.9 * velocity)
    torch.testing.assert_close(runs[0]["weights"], agreed, rtol=1e-5, atol=1e-6)


@pytest.mark.multiprocess
def test_a_run_saved_between_agreements_goes_on_bit_for_bit() -> None:
    for one in alone():
        assert torch.equal(one["resumed"]["weights"], one["diloco"]["weights"])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"compression": "topk", "kept_share": 0.0}, "kept_share is 0.0"),
        ({"compression": "powersgd", "powersgd_rank": 0}, "powersgd_rank is 0"),
        ({"compression": "topk", "hierarchical": True}, "not with topk"),
    ],
)
def test_what_does_not_go_together_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        attach(_Model(), recipe(1, **settings), _Alone())  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["zero", "tp", "pp"])
def test_local_training_has_the_whole_model_on_every_rank(name: str) -> None:
    asked = msgspec.structs.replace(
        recipe(2, sync_every=2),
        layout=Layout(**{"dp": 2, "fsdp": 2, "global_batch": 2, name: 2}),
    )
    with pytest.raises(InputError, match=f"layout has {name} 2 beside it"):
        LocalSgd([Toy()], asked, _Alone())  # type: ignore[arg-type]


@pytest.mark.parametrize("settings", [{"compression": "int8"}, {"hierarchical": True}])
def test_a_layout_without_hooks_says_so(settings: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="needs whole gradients on every rank"):
        check_without_hook(recipe(2, **settings))
    check_without_hook(recipe(1, **settings))
    check_without_hook(recipe(2))


def test_local_training_does_not_compress_gradients() -> None:
    with pytest.raises(InputError, match="exchanges weights, not gradients"):
        LocalSgd([Toy()], recipe(1, sync_every=2, compression="int8"), _Alone())  # type: ignore[arg-type]


class _Model:
    module = Toy()


class _Alone:
    """A place among one."""

    def group(self, _: str) -> Any:
        return self

    def size(self) -> int:
        return 1

    def rank(self) -> int:
        return 0
