"""What every scheme promises: nothing is lost, all ranks agree, bytes are counted, resuming is
exact."""

from __future__ import annotations

import functools
import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.train.compression.rounds import SCHEMES, SETTINGS, SHAPES, SIZES, gradients_of
from tests.train.processes import run_ranks

from ridgeline.errors import InputError
from ridgeline.train.compression.bucket import ErrorMemory
from ridgeline.train.compression.quantised import Int8, Sign
from ridgeline.train.compression.sparse import random_places
from ridgeline.train.compression.wire import SCHEMES as OFFERED

ROUNDS = 6
CASTS = ("bf16", "fp16")
REMEMBERING = tuple(name for name in SCHEMES if name not in CASTS)
NUM_ELEMENTS = sum(SIZES.values())


@functools.cache
def seen_by(num_ranks: int) -> list[dict[str, Any]]:
    return run_ranks(num_ranks, "tests.train.compression.rounds:every_scheme", timeout_seconds=120)


@pytest.fixture(scope="module", params=[pytest.param(2, marks=pytest.mark.slow), 3])
def seen(request: pytest.FixtureRequest) -> list[dict[str, Any]]:
    return seen_by(request.param)


def test_a_recipe_may_ask_for_every_scheme_that_there_is() -> None:
    assert tuple(sorted(OFFERED)) == SCHEMES


@pytest.mark.slow
@pytest.mark.multiprocess
@pytest.mark.parametrize("name", SCHEMES)
def test_all_ranks_end_with_the_same_bits(seen: list[dict[str, Any]], name: str) -> None:
    for other in seen[1:]:
        for key, value in seen[0][name]["sent"].items():
            assert torch.equal(value, other[name]["sent"][key])


@pytest.mark.multiprocess
@pytest.mark.parametrize("name", REMEMBERING)
def test_what_was_sent_and_what_is_remembered_are_the_gradients(
    seen: list[dict[str, Any]], name: str
) -> None:
    ranks = len(seen)
    owner_errors = _owner_errors([one[name]["state"] for one in seen])
    for key, shape in SHAPES.items():
        due = sum(
            gradients_of(rank, number)[key].double() for rank in range(ranks) for number in range(6)
        )
        kept = sum(
            one[name]["state"]["error"][key].double()[: SIZES[key]].view(shape) for one in seen
        )
        accounted = seen[0][name]["sent"][key].double() + kept / ranks + owner_errors[key]
        torch.testing.assert_close(accounted, due / ranks, rtol=0, atol=2e-5)
        if key != "bias":
            assert kept.abs().max() > 1e-4 or key == "norm", "a memory that is empty proves nothing"


def _owner_errors(states: list[dict[str, Any]]) -> dict[str, Any]:
    """What owners of parts remember, where it belongs."""
    found: dict[str, Any] = dict.fromkeys(SHAPES, 0.0)
    if "owner_error" not in states[0]:
        return found
    group = 256 if states[0]["error"]["bias"].numel() == 256 else 1024
    first = 0
    for key, size in SIZES.items():
        number = math.ceil(size / group)
        whole = torch.zeros(number, group, dtype=torch.float64)
        for rank, state in enumerate(states):
            owned = [place for place in range(number) if (first + place) % len(states) == rank]
            whole[owned] += state["owner_error"][key].double().view(-1, group)
        found[key] = whole.view(-1)[:size].view(SHAPES[key])
        first += number
    return found


@pytest.mark.multiprocess
@pytest.mark.parametrize("name", SCHEMES)
def test_a_resumed_run_goes_on_bit_for_bit_in_other_buckets(
    seen: list[dict[str, Any]], name: str
) -> None:
    if name in ("powersgd", "randomk", *CASTS) and len(seen) > 2:
        pytest.skip("gloo's ring adds in an order that depends on the place in the buffer")
    assert all(one[name]["resumed_alike"] for one in seen)


@pytest.mark.multiprocess
@pytest.mark.parametrize("name", CASTS)
def test_sixteen_bits_keep_the_mean_to_their_precision(
    seen: list[dict[str, Any]], name: str
) -> None:
    ranks = len(seen)
    precision = {"bf16": 2**-8, "fp16": 2**-11}[name]
    for key in SHAPES:
        due = sum(gradients_of(rank, number)[key] for rank in range(ranks) for number in range(6))
        error = (seen[0][name]["sent"][key] - due / ranks).abs().max()
        assert 0 < error < 6 * 4 * precision * ranks


def _kept() -> int:
    return sum(math.ceil(SETTINGS.kept_share * size) for size in SIZES.values())


def _factors() -> int:
    thin = sum(3 * sum(SHAPES[key]) for key in ("embedding", "up", "down"))
    return thin + SIZES["norm"] + SIZES["bias"]


def _groups(width: int) -> int:
    return sum(math.ceil(size / width) for size in SIZES.values())


@pytest.mark.multiprocess
def test_bytes_are_those_of_the_messages(seen: list[dict[str, Any]]) -> None:
    ranks = len(seen)
    ring = 2 * (ranks - 1) / ranks
    expected = {
        "bf16": (2 * NUM_ELEMENTS, ring * 2 * NUM_ELEMENTS),
        "fp16": (2 * NUM_ELEMENTS, ring * 2 * NUM_ELEMENTS),
        "topk": (8 * _kept(), (ranks - 1) * 8 * _kept()),
        "randomk": (4 * _kept(), ring * 4 * _kept()),
        "powersgd": (4 * _factors(), ring * 4 * _factors()),
    }
    for name, (payload, sent) in expected.items():
        for one in seen:
            for traffic in one[name]["traffic"]:
                assert traffic.payload_bytes == payload, name
                assert traffic.sent_bytes == pytest.approx(sent), name


@pytest.mark.multiprocess
@pytest.mark.parametrize(("name", "row_bytes", "width"), [("int8", 260, 256), ("sign", 132, 1024)])
def test_two_steps_send_twice_what_is_not_ones_own(
    seen: list[dict[str, Any]], name: str, row_bytes: int, width: int
) -> None:
    ranks, groups = len(seen), _groups(width)
    for number in range(ROUNDS):
        first_step = sum(one[name]["traffic"][number].sent_bytes for one in seen)
        least = 2 * (ranks - 1) * groups * row_bytes
        # Ranks own as many groups as can be; each of the two buckets is padded to its longest.
        assert least <= first_step <= least + 2 * ranks * (ranks - 1) * row_bytes


@given(st.integers(1, 5000), st.floats(0.001, 1.0), st.integers(0, 1000))
def test_random_places_are_as_many_as_asked_and_inside(size: int, share: float, step: int) -> None:
    places = random_places(size, share, "a.weight", step)
    assert len(places) == math.ceil(share * size)
    assert places.min() >= 0
    assert places.max() < size


def test_random_places_are_equally_likely() -> None:
    size, draws = 30, 6000
    counts = torch.zeros(size)
    for step in range(draws):
        counts[random_places(size, 0.1, "a.weight", step)] += 1
    expected = draws * 3 / size
    assert (counts - expected).abs().max() < 5 * math.sqrt(expected)


def test_random_places_differ_by_step_and_parameter() -> None:
    first = random_places(10_000, 0.01, "a", 0)
    assert not torch.equal(first, random_places(10_000, 0.01, "a", 1))
    assert not torch.equal(first, random_places(10_000, 0.01, "b", 0))


@given(st.integers(1, 6), st.integers(0, 2**31))
def test_int8_is_off_by_half_a_step_at_most(groups: int, seed: int) -> None:
    codec = Int8()
    elements = torch.randn(groups, codec.group, generator=torch.Generator().manual_seed(seed))
    elements[0] = 0.0
    codes, scales = codec.encode(elements, torch.full((groups,), 256.0))
    error = (codec.decode(codes.view(torch.uint8), scales) - elements).abs()
    assert (error <= scales[:, None] * 0.5001).all()
    assert (error[0] == 0).all()


@given(st.integers(1, 6), st.integers(0, 2**31))
def test_a_sign_takes_one_bit_and_keeps_it(groups: int, seed: int) -> None:
    codec = Sign()
    elements = torch.randn(groups, codec.group, generator=torch.Generator().manual_seed(seed))
    codes, scales = codec.encode(elements, torch.full((groups,), 1024.0))
    assert codes.nbytes == groups * 128
    decoded = codec.decode(codes, scales)
    assert torch.equal(decoded > 0, elements >= 0)
    torch.testing.assert_close(decoded.abs().mean(dim=1), elements.abs().mean(dim=1))


def test_a_sign_is_a_contraction_also_in_a_group_that_is_not_full() -> None:
    """‖C(p) - p‖² = (1 - ‖p‖₁²/(d ‖p‖²)) ‖p‖²: lemma 8 of arXiv 1901.09847."""
    codec = Sign()
    elements = torch.zeros(1, codec.group)
    elements[0, :10] = torch.arange(1.0, 11.0)
    codes, scales = codec.encode(elements, torch.tensor([10.0]))
    part = elements[0, :10]
    error = (codec.decode(codes, scales)[0, :10] - part).square().sum()
    expected = part.square().sum() - part.abs().sum() ** 2 / 10
    torch.testing.assert_close(error, expected)


def test_a_memory_follows_its_parameter_into_another_bucket() -> None:
    memory = ErrorMemory("error memory")
    memory.of(("a", "b"), [2, 3], torch.device("cpu")).copy_(torch.arange(5.0))
    memory.of(("c",), [1], torch.device("cpu")).fill_(7.0)
    moved = memory.of(("c", "b"), [1, 3], torch.device("cpu"))
    assert moved.tolist() == [7.0, 2.0, 3.0, 4.0]
    moved += 1.0
    assert memory.state_dict()["b"].tolist() == [3.0, 4.0, 5.0]
    assert memory.state_dict()["a"].tolist() == [0.0, 1.0]


def test_a_memory_of_another_size_is_refused() -> None:
    memory = ErrorMemory("error memory")
    memory.load_state_dict({"a": torch.zeros(4)})
    with pytest.raises(InputError, match="4 numbers were saved and 2 are needed"):
        memory.of(("a",), [2], torch.device("cpu"))
