"""FlashAttention in Triton against float64: results, gradients, tiles visited, memory."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.kernels.attention_cases import (
    CASES,
    DROPPED,
    RUNS,
    Case,
    blocks,
    drawn,
    eager,
    exact_results,
    named,
    results,
)
from tests.kernels.triton.accuracy import error_of, random
from tests.kernels.triton.conftest import INTERPRETED
from torch.utils._python_dispatch import TorchDispatchMode

from ridgeline.kernels.attention_mask import AttentionMask
from ridgeline.kernels.flash_attention import (
    Dropout,
    flash_attention,
    flash_attention_reference,
)
from ridgeline.kernels.flash_problem import FlashProblem
from ridgeline.kernels.triton import flash_attention as kernel

QUICK = {
    "bottom right", "rows that see nothing", "sinks", "documents", "blocks",
    "sequences with all else",
}  # fmt: skip
"""Each feature once; the rest is for the slow suite."""


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Tiles of 16 under the interpreter, so that few tokens fill several; on a GPU the table's."""
    if INTERPRETED:
        monkeypatch.setattr(kernel, "TABLE", Path(__file__).with_name("small_flash_tiles.csv"))


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in CASES],
)
def test_results_and_every_gradient_are_those_of_float64(device, name):
    case = CASES[name]
    leaves = drawn(case, torch.float32, device)
    found, upper = results(flash_attention, leaves, case)
    exact = exact_results(case, leaves, upper)
    for part, one in named(found).items():
        seen = torch.isfinite(exact[part])
        assert torch.equal(torch.isfinite(one), seen), part
        assert error_of(one[seen], exact[part][seen]) < 2e-6, part


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision_is_no_worse_than_eager_attention_in_it(device, dtype):
    if INTERPRETED and dtype == torch.bfloat16:
        from ridgeline.kernels.check import bfloat16

        bfloat16.install()
    case = CASES["bottom right"]
    leaves = drawn(case, dtype, device)
    found, upper = results(flash_attention, leaves, case)
    exact = exact_results(case, leaves, upper)
    theirs = named(results(eager, leaves, case, upper)[0])
    for part, one in named(found).items():
        assert error_of(one, exact[part]) <= 1.05 * error_of(theirs[part], exact[part]), part


def test_the_backward_gives_the_same_bits_every_time(device):
    case = CASES["sinks"]
    leaves = drawn(case, torch.float16, device)
    first, upper = results(flash_attention, leaves, case)
    again, _ = results(flash_attention, leaves, case, upper)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))


def test_expanded_gradients_and_transposed_inputs_are_read_as_they_lie(device):
    made = {"dtype": torch.float32, "device": device}
    queries = random(2, 19, 2, 16, **made).transpose(1, 2).requires_grad_()
    keys = random(2, 1, 16, 19, **made).transpose(2, 3).requires_grad_()
    values = random(2, 1, 1, 16, **made).expand(2, 1, 19, 16).requires_grad_()
    upper = random(1, 1, 1, 1, **made).expand(2, 2, 19, 16)
    found = []
    for compute in (flash_attention, flash_attention_reference):
        out = compute(queries, keys, values, mask=AttentionMask(causal=True)).out
        found.append([out, *torch.autograd.grad(out, (queries, keys, values), upper)])
    assert found[0][0].stride() == queries.stride()
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_no_tokens_give_no_tokens_and_no_keys_give_zeros(device):
    empty = torch.empty(1, 2, 0, 16, device=device, requires_grad=True)
    some = torch.ones(1, 2, 5, 16, device=device, requires_grad=True)
    flash_attention(empty, some, some).out.sum().backward()
    assert empty.grad.shape == empty.shape
    assert not some.grad.any()
    out, logs = flash_attention(some, empty, empty)
    assert not out.any()
    assert (logs == float("-inf")).all()


def test_weights_are_dropped_as_on_a_cpu(device):
    queries, keys = (random(1, 2, 18, 16, dtype=torch.float32, device=device) for _ in "qk")
    eye = torch.eye(18, 16, device=device).expand(1, 2, 18, 16)
    mask = AttentionMask(causal=True)
    ours = flash_attention(queries, keys, eye, mask=mask, dropout=DROPPED).out
    plain = flash_attention_reference(queries, keys, eye, mask=mask, dropout=DROPPED).out
    assert torch.equal(ours == 0, plain == 0)
    other = flash_attention(queries, keys, eye, mask=mask, dropout=Dropout(0.3, 4)).out
    assert not torch.equal(ours == 0, other == 0)


TILED = {
    "causal": ((1, 1, 1, 60, 60, 16), AttentionMask(causal=True)),
    "bottom right": ((1, 1, 1, 33, 70, 16), AttentionMask(causal=True)),
    "more queries": ((1, 1, 1, 70, 33, 16), AttentionMask(causal=True)),
    "window": ((1, 1, 1, 80, 80, 16), AttentionMask(causal=True, window=20)),
    "window both ways": ((1, 1, 1, 70, 50, 16), AttentionMask(window=3)),
    "documents": ((1, 1, 1, 37, 37, 16), AttentionMask(causal=True, documents=RUNS[1:])),
    "documents both ways": ((1, 1, 1, 37, 37, 16), AttentionMask(documents=RUNS[1:])),
    "blocks": (
        (1, 1, 1, 70, 50, 16),
        AttentionMask(causal=True, blocks=blocks(1, 1, 3, 2), block_size=32),
    ),
}


@pytest.mark.skipif(not INTERPRETED, reason="counted under the interpreter")
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(n, marks=() if n in {"bottom right", "blocks"} else pytest.mark.slow)
        for n in TILED
    ],
)
def test_each_interpreter_kernel_visits_the_tiles_of_the_mask_and_no_other(device, name):
    from tests.kernels.triton.memory import watched

    sizes, mask = TILED[name]
    case = Case(sizes, mask)
    queries, keys, values = drawn(case, torch.float32, device)
    seen = torch.isfinite(_scores_that_are_seen(mask, sizes))
    tall, wide = (-(-size // 16) for size in seen.shape)
    padded = torch.zeros(tall * 16, wide * 16, dtype=torch.bool)
    padded[: seen.shape[0], : seen.shape[1]] = seen
    wanted = int(padded.view(tall, 16, wide, 16).any(3).any(1).sum())
    with watched() as traffic:
        out = flash_attention(queries, keys, values, mask=mask).out
    assert _loads_from(traffic, keys) == wanted
    with watched() as traffic:
        out.backward(torch.ones_like(out))
    # Keys are read once by each program that owns some, queries likewise; then once a tile.
    assert _loads_from(traffic, keys) == wanted + wide
    assert _loads_from(traffic, queries) == wanted + tall
    assert traffic.bytes_stored_twice == 0


def _scores_that_are_seen(mask, sizes):
    """Zeros where a query sees a key: log sums of one key at a time."""
    _, _, _, length, num_keys, _ = sizes
    eye = torch.eye(num_keys)[None, None]
    zeros = torch.zeros(1, 1, length, num_keys)
    weights = flash_attention_reference(zeros, eye, eye, mask=mask).out[0, 0]
    return torch.where(weights > 0, 0.0, float("-inf"))


def _loads_from(traffic, tensor):
    """How many loads touched a tensor."""
    start = tensor.untyped_storage().data_ptr()
    stop = start + tensor.untyped_storage().nbytes()
    return sum(len(one) > 0 and start <= int(one[0]) < stop for one in traffic.loads)


class Allocations(TorchDispatchMode):
    """Bytes of the storages that operators make."""

    def __init__(self):
        super().__init__()
        self.sizes = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        for one in made if isinstance(made, tuple | list) else (made,):
            if isinstance(one, torch.Tensor) and not one._is_view() and "empty" in func.name():
                self.sizes.append(one.numel() * one.itemsize)
        return made


@pytest.mark.skipif(INTERPRETED, reason="nothing is launched")
def test_a_head_of_8192_tokens_needs_1_megabyte_where_all_weights_are_128():
    from tests.kernels.triton.compiling import recorded

    length, dim = 8192, 64
    queries = torch.empty(1, 1, length, dim, dtype=torch.float16, device="meta")
    problem = FlashProblem(
        *[None] * 6, 0.125, None, 0, None, 0.0, 128, length, length, 1
    )  # fmt: skip
    names = ("forward_kernel", "along_kernel", "key_kernel", "query_kernel")
    with recorded(kernel, *names), Allocations() as forward:
        results = kernel.forward(problem, (queries, queries, queries))
    assert length * length * 2 == 128 * 2**20
    assert sorted(forward.sizes) == [length * 4, length * dim * 2] == [2**15, 2**20]
    with recorded(kernel, *names), Allocations() as backward:
        kernel.backward(problem, (queries, queries, queries), results, (queries, None))
    assert sorted(backward.sizes) == [2**15, 2**20, 2**20, 2**20]
