"""Rotary embedding in Triton against float64: results, gradients, bytes, layouts."""

from __future__ import annotations

import pytest
import torch
from tests.kernels.triton.accuracy import assert_rounded_once, exact_gradients, random
from tests.kernels.triton.conftest import INTERPRETED

from ridgeline.errors import InputError
from ridgeline.kernels.rotary import rotary, rotary_reference


def angles(batch, length, dim, dtype, device):
    """Cosines and sines whose two halves differ, so that none is read for the other."""
    theta = random(batch, length, dim, dtype=torch.float32, device=device)
    return theta.cos().to(dtype), theta.sin().to(dtype)


def heads(batch, count, length, dim, seed=0, **made):
    return random(batch, length, count, dim, seed=seed, **made).transpose(1, 2)


def check(queries, keys, cos, sin, upper, *, interleaved=False):
    leaves = [one.detach().requires_grad_() for one in (queries, keys)]
    turned = rotary(*leaves, cos, sin, interleaved=interleaved)
    found = torch.autograd.grad(turned, leaves, upper)

    def exact(queries, keys):
        return rotary_reference(queries, keys, cos.double(), sin.double(), interleaved=interleaved)

    wanted = exact(*(one.detach().double() for one in leaves))
    gradients = exact_gradients(exact, leaves, upper)
    for name, one, other in zip(
        ("queries", "keys", "dqueries", "dkeys"),
        (*turned, *found),
        (*wanted, *gradients),
        strict=True,
    ):
        assert one.dtype == queries.dtype
        assert_rounded_once(one, other, name)
    return turned


@pytest.mark.parametrize("interleaved", [False, True], ids=["halves", "neighbours"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize(
    ("batch", "query_heads", "key_heads", "length", "dim"),
    [(2, 6, 2, 5, 24), (1, 1, 1, 1, 2), (3, 17, 1, 2, 64)],
)
def test_results_and_gradients_are_those_of_float64(
    device, batch, query_heads, key_heads, length, dim, dtype, interleaved
):
    made = {"dtype": dtype, "device": device}
    queries, dq = (heads(batch, query_heads, length, dim, seed=s, **made) for s in (0, 1))
    keys, dk = (heads(batch, key_heads, length, dim, seed=s, **made) for s in (2, 3))
    for rows in {1, batch}:
        cos, sin = angles(rows, length, dim, dtype, device)
        turned = check(queries, keys, cos, sin, (dq, dk), interleaved=interleaved)
        if length > 1 and query_heads > 1:
            assert turned[0].stride() == queries.stride()


def test_models_of_transformers_turn_the_same_way(device):
    from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

    made = {"dtype": torch.float32, "device": device}
    queries, keys = heads(2, 4, 6, 16, **made), heads(2, 2, 6, 16, seed=1, **made)
    cos, sin = (one.repeat(1, 1, 2) for one in angles(1, 6, 8, torch.float32, device))
    for ours, theirs in zip(
        rotary(queries, keys, cos, sin), apply_rotary_pos_emb(queries, keys, cos, sin), strict=True
    ):
        torch.testing.assert_close(ours, theirs)


def test_expanded_gradients_and_transposed_inputs_are_read_as_they_lie(device):
    made = {"dtype": torch.float32, "device": device}
    queries = random(2, 3, 8, 4, **made).transpose(2, 3)
    keys = random(2, 1, 4, 8, **made).expand(2, 3, 4, 8)
    cos, sin = angles(1, 4, 8, torch.float32, device)
    dq = random(1, 1, 1, 1, **made).expand(2, 3, 4, 8)
    check(queries, keys, cos, sin, (dq, dq))


def test_no_tokens_give_no_tokens(device):
    queries = torch.empty(1, 2, 0, 8, device=device, requires_grad=True)
    cos = torch.empty(1, 0, 8, device=device)
    turned, _ = rotary(queries, queries.detach(), cos, cos)
    turned.sum().backward()
    assert queries.grad.shape == queries.shape


@pytest.mark.skipif(not INTERPRETED, reason="counted under the interpreter")
def test_each_interpreter_byte_is_touched_once_and_none_outside(device):
    from tests.kernels.triton.memory import watched

    made = {"dtype": torch.float16, "device": device}
    queries, keys = heads(2, 6, 5, 48, **made), heads(2, 2, 5, 48, **made)
    cos, sin = angles(2, 5, 48, torch.float16, device)
    with watched() as traffic:
        turned = rotary(queries, keys, cos, sin)
    least = 2 * (queries.nbytes + keys.nbytes) + cos.nbytes + sin.nbytes
    assert traffic.unique_bytes == traffic.total_bytes == least
    assert traffic.bytes_stored_twice == 0
    assert traffic.bytes_outside(queries, keys, cos, sin, *turned) == 0


def test_torch_checks_the_operator_and_compiles_it_whole(device):
    queries = torch.randn(2, 3, 4, 8, device=device, requires_grad=True)
    keys = torch.randn(2, 4, 1, 8, device=device).transpose(1, 2).requires_grad_()
    cos, sin = angles(1, 4, 8, torch.float32, device)
    for interleaved in (False, True):
        given = (queries, keys, cos, sin, interleaved, False)
        torch.library.opcheck(torch.ops.ridgeline.rotary.default, given)

    def turned(queries, keys):
        a, b = rotary(queries, keys, cos, sin)
        return (a @ b.transpose(-1, -2)).sum()

    compiled = torch.compile(turned, fullgraph=True, backend="aot_eager")
    eager = torch.autograd.grad(turned(queries, keys), (queries, keys))
    found = torch.autograd.grad(compiled(queries, keys), (queries, keys))
    for a, b in zip(eager, found, strict=True):
        torch.testing.assert_close(a, b)


def test_what_does_not_fit_is_refused(device):
    queries = torch.ones(1, 2, 4, 8, device=device)
    cos = torch.ones(1, 4, 8, device=device)
    with pytest.raises(InputError, match="only the heads may differ"):
        rotary(queries, queries[:, :, :2], cos, cos)
    with pytest.raises(InputError, match=r"give \[1 or 1, 4, 8\], 8 even"):
        rotary(queries, queries, cos[..., :4], cos[..., :4])
    with pytest.raises(InputError, match="detach them"):
        rotary(queries, queries, cos.clone().requires_grad_(), cos)
