"""Ring attention, ranks as threads, against attention over the whole sequence."""

from __future__ import annotations

import threading
from queue import Queue

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from ridgeline.errors import InputError
from ridgeline.train.parallel import ring_attention as module
from ridgeline.train.parallel.context import chosen_tokens
from ridgeline.train.parallel.ring_attention import Ring, block_of, ring_attention


class _Threads:
    """A ring whose ranks are threads of this process."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.lines = [Queue() for _ in range(size)]
        self.passed = 0

    def pass_on(self, tensor: Tensor, ring: Ring):
        self.passed += 1
        self.lines[(ring.rank + 1) % ring.size].put(tensor.clone())
        line = self.lines[ring.rank]

        class Coming:
            def wait(self):
                return line.get(timeout=30)

        return Coming()


def _ring(query, key, value, upstream, starts, size, monkeypatch):
    """Outputs and gradients in the order of the sequence."""
    threads = _Threads(size)
    monkeypatch.setattr(module, "_pass_on", threads.pass_on)
    seq = query.shape[2]
    places = [chosen_tokens(seq, size, rank) for rank in range(size)]
    cut_starts = None
    if starts is not None:
        cut_starts = torch.stack([starts[:, place] for place in places])
    results: list = [None] * size

    def run(rank: int) -> None:
        place = places[rank]
        mine = [one[:, :, place].clone().requires_grad_() for one in (query, key, value)]
        ring = Ring(group=None, rank=rank, size=size)
        output = ring_attention(*mine, ring, scale=0.3, starts=cut_starts)
        output.backward(upstream[:, :, place])
        results[rank] = [output.detach(), *[one.grad for one in mine]]

    workers = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    back = torch.cat(places).argsort()
    whole = [torch.cat([result[i] for result in results], dim=2)[:, :, back] for i in range(4)]
    return whole, threads.passed


def _reference(query, key, value, upstream, starts):
    mine = [one.double().requires_grad_() for one in (query, key, value)]
    seq = query.shape[2]
    seen = torch.ones(seq, seq, dtype=torch.bool).tril()
    if starts is not None:
        seen = seen & (starts[:, None, :, None] == starts[:, None, None, :])
    output = torch.nn.functional.scaled_dot_product_attention(
        *mine, attn_mask=seen, scale=0.3, enable_gqa=True
    )
    output.backward(upstream.double())
    return [output.detach(), *[one.grad for one in mine]]


@settings(max_examples=25, deadline=None)
@given(
    size=st.integers(2, 4),
    chunk=st.integers(1, 9),
    rows=st.integers(1, 3),
    kv_heads=st.integers(1, 3),
    groups=st.integers(1, 3),
    width=st.sampled_from([1, 4, 7, 16]),
    seed=st.integers(0, 10**6),
    documents=st.booleans(),
)
def test_outputs_and_gradients_are_those_of_the_whole_sequence(
    size, chunk, rows, kv_heads, groups, width, seed, documents
):
    torch.manual_seed(seed)
    seq = 2 * size * chunk
    query, upstream = torch.randn(2, rows, kv_heads * groups, seq, width)
    key, value = torch.randn(2, rows, kv_heads, seq, width)
    starts = _random_starts(rows, seq) if documents else None
    with pytest.MonkeyPatch.context() as patch:
        found, passed = _ring(query, key, value, upstream, starts, size, patch)
    for one, other in zip(found, _reference(query, key, value, upstream, starts), strict=True):
        assert one.dtype == torch.float32
        torch.testing.assert_close(one.double(), other, rtol=2e-5, atol=4e-6)
    # Keys and values come from all others twice; gradients go all the way round once.
    assert passed == size * (2 * (size - 1) + size)


def _random_starts(rows, seq):
    """Where each token's document begins: a few documents in each row."""
    begins = torch.rand(rows, seq) < 0.3
    begins[:, 0] = True
    return torch.where(begins, torch.arange(seq), 0).cummax(dim=1).values


def test_bf16_is_accumulated_in_fp32(monkeypatch):
    torch.manual_seed(0)
    query, upstream = torch.randn(2, 1, 4, 64, 16)
    key, value = torch.randn(2, 1, 2, 64, 16)
    low = [one.bfloat16() for one in (query, key, value, upstream)]
    found, _ = _ring(*low, None, 4, monkeypatch)
    expected = _reference(*low, None)
    assert found[0].dtype == torch.bfloat16
    for one, other in zip(found, expected, strict=True):
        error = (one.double() - other).norm() / other.norm()
        # One rounding to eight bits is 2^-9 on average; the steps of the ring add none.
        assert error < 2**-7


@pytest.mark.parametrize("size", [2, 3, 4, 8])
def test_every_rank_has_the_same_work_and_each_pair_is_seen_once(size):
    tokens = 6
    seen = torch.zeros(size * tokens, size * tokens, dtype=torch.int64)
    work = []
    for rank in range(size):
        mine, pairs = chosen_tokens(size * tokens, size, rank), 0
        for source in range(size):
            theirs = chosen_tokens(size * tokens, size, source)
            block = block_of(rank, source, tokens)
            rows, columns = mine[block.queries], theirs[block.keys]
            visible = torch.ones(len(rows), len(columns), dtype=torch.int64)
            visible = visible.tril() if block.causal else visible
            seen[rows[:, None], columns[None, :]] += visible
            pairs += int(visible.sum())
        work.append(pairs)
    assert torch.equal(seen, torch.ones_like(seen).tril())
    assert len(set(work)) == 1


def test_a_sequence_that_does_not_divide_is_refused():
    with pytest.raises(InputError, match=r"data\.seq 10 does not divide into 2 x cp = 4 chunks"):
        chosen_tokens(10, 2, 0)
