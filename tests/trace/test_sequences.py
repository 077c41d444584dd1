"""`ridgeline trace sequences`: kernels that recur in order, and chains that could be one kernel."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.trace.written import call, host, kernel, write

from ridgeline.cli.main import run
from ridgeline.hardware.catalogue import match_reported_name

A100 = "NVIDIA A100-SXM4-80GB"
ADD = "void at::native::vectorized_elementwise_kernel<4, CUDAFunctor_add>()"
MUL = "void at::native::vectorized_elementwise_kernel<4, MulFunctor>()"
NORM = "void at::native::vectorized_layer_norm_kernel<float>()"
Asked = Callable[..., dict[str, Any]]


@pytest.fixture
def asked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Asked:
    """The command's answer about a trace of these events."""

    def ask(events: list[dict[str, Any]], *arguments: str) -> dict[str, Any]:
        devices = [{"id": 0, "name": A100}]
        path = write(tmp_path / "rank0.json", events, deviceProperties=devices)
        assert run(["trace", "sequences", str(path), "--json", *arguments]) == 0
        (rank,) = json.loads(capsys.readouterr().out)["ranks"]
        found: dict[str, Any] = rank
        return found

    return ask


def row(names: str, *, start: float = 0.0, gap: float = 1.0, **given: Any) -> list[dict[str, Any]]:
    """Kernels of 10 µs one after the other, each named by a letter."""
    return [
        kernel(start + place * (10 + gap), 10, name=name, **given)
        for place, name in enumerate(names)
    ]


def told(rank: dict[str, Any]) -> dict[str, int]:
    return {"".join(one["kernels"]): one["count"] for one in rank["sequences"]}


def test_what_recurs_is_told_once_with_its_time_and_gaps(asked: Asked) -> None:
    rank = asked(row("xABCyABCzABCw"))
    assert told(rank) == {"ABC": 3}
    (found,) = rank["sequences"]
    assert (found["total_us"], found["mean_us"], found["mean_gap_us"]) == (90, 30, 2)
    assert found["share"] == pytest.approx(9 / 13)
    assert (rank["kernels"], rank["kernels_us"], found["first_us"]) == (13, 130, 11)


@pytest.mark.parametrize(
    ("second", "count"),
    [({"start": 20.0}, 2), ({"start": 1015.0}, 1), ({"start": 11.0, "stream": 8}, 1)],
)
def test_a_long_gap_or_another_stream_ends_a_stretch(
    asked: Asked, second: dict[str, Any], count: int
) -> None:
    """A and B twice: the second time right behind, a millisecond later, or on another stream."""
    start = second.pop("start")
    pair = [*row("A"), *row("B", start=start, **second)]
    later = [{**one, "ts": one["ts"] + 5000} for one in pair]
    assert told(asked([*pair, *later])) == ({"AB": 2} if count == 2 else {})


def test_nothing_crosses_a_copy_or_the_border_of_a_graph(asked: Asked) -> None:
    copy = kernel(11, 10, name="Memcpy HtoD", category="gpu_memcpy")
    with_copy = [*row("A"), copy, *row("B", start=22)]
    later = [{**one, "ts": one["ts"] + 40} for one in with_copy]
    assert told(asked([*with_copy, *later])) == {}
    replays = [
        event
        for turn in range(4)
        for event in (
            call(turn * 22, 2, turn + 1, "cudaGraphLaunch"),
            *row("AB", start=turn * 22 + 5, correlation=turn + 1),
        )
    ]
    assert told(asked(replays)) == {"AB": 4}  # and no BA between one replay and the next


def test_repetitions_give_way_to_what_they_repeat(asked: Asked) -> None:
    assert told(asked(row("ABABABAB"))) == {"AB": 4}
    assert told(asked(row("AAAAAA"))) == {"AA": 3}


def test_each_kernel_counts_in_one_sequence_at_most(asked: Asked) -> None:
    generator = random.Random(5)
    names = "".join(generator.choice("ABC") for _ in range(300))
    rank = asked(row(names), "--top", "99", "--longest", "5")
    whole = sum(one["total_us"] for one in rank["sequences"])
    assert 0 < whole <= rank["kernels_us"]
    for one in rank["sequences"]:
        # No more than the most that fit without overlaps; str.count counts those from the left.
        assert 2 <= one["count"] <= names.count("".join(one["kernels"]))
    best = rank["sequences"][0]
    most = max(
        names.count(names[at : at + length]) * length
        for length in range(2, 6)
        for at in range(300 - length)
        if length == 2 or len(set(names[at : at + length])) > 1
    )
    assert best["count"] * best["length"] >= 0.9 * most


def elementwise(
    place: int, kernel_name: str, operator: str, size: int, us: float = 20.0
) -> list[dict[str, Any]]:
    """One operator on tensors of so many floats, and its kernel."""
    dims = {"Input Dims": [[size], [size]], "Input type": ["float", "float"]}
    return [
        host(place * 10, 8, operator, **dims),
        call(place * 10 + 2, 2, place + 1),
        kernel(1000 + place * 21, us, name=kernel_name, correlation=place + 1),
    ]


def test_a_chain_saves_what_it_neither_writes_nor_reads(asked: Asked) -> None:
    """Two of 4 MB in, 4 MB out, each 20 µs; the tensor between is written and read no more."""
    size = 1_000_000
    events = [*elementwise(0, ADD, "aten::add", size), *elementwise(1, MUL, "aten::mul", size)]
    (found,) = asked(events)["candidates"]
    assert found["operators"] == ["aten::add", "aten::mul"]
    assert (found["moved_bytes"], found["saved_bytes"]) == (24e6, 8e6)
    assert (found["count"], found["launches_saved"], found["total_us"]) == (1, 1, 40)
    a100 = match_reported_name(A100)
    assert a100 is not None
    least = 16e6 / a100.memory.bandwidth_bytes_per_second * 1e6
    assert least < 20  # the longest kernel is the tighter limit
    assert (found["worth_us"], found["bound"]) == (20, "longest kernel")


def test_memory_bounds_the_worth_where_kernels_are_at_the_roof(asked: Asked) -> None:
    size = 1_000_000
    fast = 12e6 / 2.04e12 * 1e6
    events = [
        *elementwise(0, ADD, "aten::add", size, fast),
        *elementwise(1, MUL, "aten::mul", size, fast),
    ]
    (found,) = asked(events)["candidates"]
    a100 = match_reported_name(A100)
    assert a100 is not None
    least = 16e6 / a100.memory.bandwidth_bytes_per_second * 1e6
    assert found["bound"] == "memory"
    assert found["worth_us"] == pytest.approx(2 * fast - least, rel=1e-3)


def test_sizes_that_do_not_fit_end_a_chain(asked: Asked) -> None:
    events = [*elementwise(0, ADD, "aten::add", 1000), *elementwise(1, MUL, "aten::mul", 999)]
    assert asked(events)["candidates"] == []


def test_without_shapes_a_chain_is_worth_all_but_its_longest_kernel(asked: Asked) -> None:
    chain = [kernel(0, 10, name=ADD), kernel(11, 30, name=NORM), kernel(42, 5, name=MUL)]
    gemm = kernel(50, 100, name="ampere_sgemm_128x64_nn")
    again = [{**one, "ts": one["ts"] + 200} for one in chain]
    (found,) = asked([*chain, gemm, *again])["candidates"]
    assert (found["count"], found["worth_us"], found["launches_saved"]) == (2, 30, 4)
    assert found["classes"] == ["elementwise", "norm", "elementwise"]
    assert (found["saved_bytes"], found["operators"]) == (None, [None] * 3)


def test_real_chains_are_worth_less_than_they_take(
    real_traces: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (file,) = (real_traces / "h100_inference").glob("Qwen*.json.gz")
    assert run(["trace", "sequences", str(file), "--json", "--top", "99"]) == 0
    (rank,) = json.loads(capsys.readouterr().out)["ranks"]
    assert sum(one["total_us"] for one in rank["sequences"]) <= rank["kernels_us"]
    rotary = [
        one
        for one in rank["candidates"]
        if one["operators"][:3] == ["aten::neg", "aten::cat", "aten::mul"]
    ]
    assert sum(one["count"] for one in rotary) >= 24  # one or two a layer
    assert all(0 <= one["worth_us"] < one["total_us"] for one in rank["candidates"])
    assert run(["trace", "sequences", str(file)]) == 0
    assert "Could be one kernel" in capsys.readouterr().out
