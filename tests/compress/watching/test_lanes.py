"""Chunks that go through a block side by side, against one after the other."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import torch

from ridgeline.compress.run import CompressionJob, stage
from ridgeline.compress.watching.capture import SAMPLE_ROWS, Gatherer
from ridgeline.compress.watching.lanes import num_lanes, side_by_side
from ridgeline.records.scheme_names import parse


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("two_threads")
def test_each_lane_has_its_items_in_order_on_a_thread_of_its_own() -> None:
    both = threading.Barrier(2, timeout=60)  # passed only side by side
    seen: dict[int, list[int]] = {0: [], 1: []}
    threads: dict[int, int] = {}

    def work(lane: int, item: int) -> None:
        both.wait()
        seen[lane].append(item)
        threads[threading.get_ident()] = torch.get_num_threads()

    side_by_side(work, range(6))
    assert seen == {0: [0, 2, 4], 1: [1, 3, 5]}
    assert list(threads.values()) == [1, 1]
    assert torch.get_num_threads() == num_lanes() == 2


@pytest.mark.usefixtures("two_threads")
def test_after_an_error_in_one_lane_the_other_begins_nothing_more() -> None:
    failed = threading.Event()
    begun = []

    def work(lane: int, item: int) -> None:
        begun.append(item)
        if lane == 0:
            failed.set()
            raise ValueError("no such thing")
        failed.wait(60)

    with pytest.raises(ValueError, match="no such thing"):
        side_by_side(work, range(1000))
    assert len(begun) < 1000


@pytest.mark.parametrize("lengths", [(700, 640), (90, 0), (3000, 400)])
def test_what_two_lanes_saw_is_what_one_would_have(lengths: tuple[int, int]) -> None:
    wanted = frozenset({"hessian", "mean_abs", "max_abs", "square_norm", "rows"})
    generator = torch.Generator().manual_seed(0)
    parts = [torch.randn(length, 5, generator=generator) for length in lengths]
    lanes = [Gatherer(wanted), Gatherer(wanted)]
    for lane, part in zip(lanes, parts, strict=True):
        lane.add(part)
    lanes[0].join(lanes[1])
    seen, x = lanes[0].seen(), torch.cat(parts)
    assert seen.num_tokens == len(x)
    assert seen.hessian is not None
    assert seen.rows is not None
    torch.testing.assert_close(seen.hessian, 2 / len(x) * x.T @ x, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(seen.mean_abs, x.abs().mean(0))
    torch.testing.assert_close(seen.max_abs, x.abs().amax(0))
    torch.testing.assert_close(seen.square_norm, x.square().sum(0))
    assert min(len(x), SAMPLE_ROWS // 2) <= len(seen.rows) < 2 * SAMPLE_ROWS
    # An even sample: each part has rows in it by its length.
    own = sum(bool((parts[0] == row).all(1).any()) for row in seen.rows)
    assert abs(own / len(seen.rows) - lengths[0] / sum(lengths)) < 0.02


@pytest.mark.usefixtures("two_threads")
@pytest.mark.sweep("w4a16-gptq-g16")
@pytest.mark.parametrize("scheme", ["w4a16-gptq-g16", "w4a16-awq-g16"])
def test_layers_lose_as_much_with_two_lanes_as_with_one(
    tiny_model, tokens, tmp_path, monkeypatch, scheme
):
    monkeypatch.setattr("ridgeline.compress.flow.CHUNK_TOKENS", 80)
    form = (parse(scheme),)
    found = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        job = CompressionJob(
            model=tiny_model("llama"),
            schemes=form,
            of_layer={"lm_head": form},
            work=tmp_path / str(threads),
            tokens=tokens,
        )
        found.append({layer.name: layer.error for layer in stage(job).layers})
    assert "lm_head" in found[0]
    assert found[1] == pytest.approx(found[0], rel=0.05)
