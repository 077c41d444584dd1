"""Scores that wait end as attention that was written out would, whatever is done to them."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline.kernels.scores_that_wait import WaitingScores, makes_scores_wait

Tensor = torch.Tensor
LENGTH, WIDTH = 32, 16
CAUSAL = torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1)
PADDED = torch.zeros(2, 1, 1, LENGTH, dtype=torch.bool)
PADDED[1, ..., 20:] = True
PRODUCTS = (
    (torch, "matmul"), (torch, "bmm"), (torch, "einsum"), (Tensor, "matmul"), (Tensor, "bmm"),
    (Tensor, "__matmul__"),
)  # fmt: skip
SCALED: dict[str, Callable[[Tensor], Tensor]] = {
    "times a number": lambda s: s * WIDTH**-0.5,
    "a number times": lambda s: WIDTH**-0.5 * s,
    "over a root": lambda s: s / math.sqrt(WIDTH),
    "over a tensor's root": lambda s: s / torch.sqrt(torch.FloatTensor([WIDTH])),
    "in place": lambda s: s.mul_(WIDTH**-0.5),
    "by name": lambda s: torch.div(s, math.sqrt(WIDTH)),
    "not at all": lambda s: s,
}
MASKED: dict[str, Callable[[Tensor], Tensor]] = {
    "not at all": lambda s: s,
    "causal": lambda s: s.masked_fill(CAUSAL, float("-inf")),
    "causal, as a buffer is": lambda s: s.masked_fill(
        CAUSAL.logical_not().float()[None, None] == 0, float("-inf")
    ),
    "padding in place": lambda s: s.masked_fill_(PADDED, -1e9),
    "both": lambda s: s.masked_fill(PADDED, -1e9).masked_fill(CAUSAL, -1e9),
    "added": lambda s: s + torch.zeros(LENGTH, LENGTH).masked_fill(CAUSAL, float("-inf")),
    "added to both": lambda s: (s + PADDED * -10000.0).masked_fill(CAUSAL, -1e10),
}
SOFTENED: dict[str, Callable[[Tensor], Tensor]] = {
    "function": lambda s: torch.nn.functional.softmax(s, dim=-1),
    "method": lambda s: s.softmax(-1),
    "module": torch.nn.Softmax(dim=-1),
    "last of four": lambda s: torch.softmax(s, 3),
    "in float32": lambda s: torch.nn.functional.softmax(s.float(), dim=-1).to(s.dtype),
}
MULTIPLIED: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "operator": lambda a, b: a @ b,
    "function": lambda a, b: torch.matmul(a, b),  # noqa: PLW0108 - as it is by then
    "method": lambda a, b: a.matmul(b),
}


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    times: Callable[[Tensor, Tensor], Tensor],
    *steps: Callable[[Any], Any],
) -> Tensor:
    scores = times_keys(times, q, k)
    for step in steps:
        scores = step(scores)
    return times(torch.nn.functional.dropout(scores, 0.1, training=False), v)


def times_keys(times: Callable[[Tensor, Tensor], Tensor], q: Tensor, k: Tensor) -> Tensor:
    return times(q, k.transpose(-2, -1))


@contextlib.contextmanager
def waiting(fused: list[str], function: str = "times_keys") -> Iterator[None]:
    """Products wait in this file; `fused` grows with each that ends in the kernel."""
    with pytest.MonkeyPatch.context() as patched:
        for owner, name in PRODUCTS:
            original = getattr(owner, name)
            product = makes_scores_wait(
                original, "test_scores_that_wait.py", function, lambda: fused.append("yes")
            )
            patched.setattr(owner, name, product)
        yield


def inputs(dims: int = 4) -> list[Tensor]:
    shape = (2, 3, LENGTH, WIDTH)[4 - dims :]
    return [torch.randn(shape, requires_grad=True) for _ in range(3)]


@settings(max_examples=60, deadline=None)
@given(
    scaled=st.sampled_from(sorted(SCALED)),
    masked=st.sampled_from(sorted(MASKED)),
    softened=st.sampled_from(sorted(SOFTENED)),
    multiplied=st.sampled_from(sorted(MULTIPLIED)),
    seed=st.integers(0, 2**31),
)
def test_every_way_of_writing_attention_ends_in_the_kernel_with_the_same_result(
    scaled: str, masked: str, softened: str, multiplied: str, seed: int
) -> None:
    torch.manual_seed(seed)
    q, k, v = inputs()
    steps = (SCALED[scaled], MASKED[masked], SOFTENED[softened])
    times = MULTIPLIED[multiplied]
    fused: list[str] = []
    wanted = attention(q, k, v, times, *steps)
    with waiting(fused, "<lambda>"):  # those above call the products
        got = attention(q, k, v, times, *steps)
    assert fused == ["yes"]
    assert type(got) is Tensor
    torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-5)
    for a, b in zip(
        torch.autograd.grad(got.square().sum(), (q, k, v)),
        torch.autograd.grad(wanted.square().sum(), (q, k, v)),
        strict=True,
    ):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


OTHERWISE: dict[str, Callable[[Tensor], Tensor]] = {
    "another dimension": lambda s: s.softmax(-2),
    "clamped": lambda s: s.clamp(max=1.0).softmax(-1),
    "talking heads": lambda s: (s.transpose(1, 3) @ torch.eye(3)).transpose(1, 3).softmax(-1),
    "learned bias": lambda s: (s + torch.ones(LENGTH, requires_grad=True)).softmax(-1),
    "small fill": lambda s: s.masked_fill(CAUSAL, -3.0).softmax(-1),
    "rows of the weights": lambda s: s.softmax(-1)[:, :, :8],
    "double": lambda s: s.softmax(-1, dtype=torch.float64).float(),
    "scaled after the mask": lambda s: (s.masked_fill(CAUSAL, -1e9) * 0.5).softmax(-1),
    "renormalised": lambda s: s.softmax(-1) / (1 + s.softmax(-1).sum(-1, keepdim=True)),
    "no softmax": lambda s: s.relu(),
}


@pytest.mark.parametrize("what", OTHERWISE)
def test_whatever_else_is_done_to_scores_is_done_as_it_was_written(what: str) -> None:
    q, k, v = inputs()
    fused: list[str] = []
    wanted = attention(q, k, v, torch.matmul, OTHERWISE[what])
    with waiting(fused):
        got = attention(q, k, v, torch.matmul, OTHERWISE[what])
    assert not fused
    torch.testing.assert_close(got, wanted)


def test_weights_that_are_returned_too_are_there_when_somebody_looks() -> None:
    q, k, v = inputs()

    def both() -> tuple[Tensor, Tensor]:
        weights = (times_keys(torch.matmul, q, k) * 0.25).softmax(-1)
        return weights @ v, weights

    wanted, weights = both()
    fused: list[str] = []
    with waiting(fused):
        got, seen = both()
    assert fused == ["yes"]
    assert isinstance(seen, WaitingScores)
    assert seen.shape == weights.shape
    assert "tensor(" in repr(seen)
    torch.testing.assert_close(seen.mean(), weights.mean())
    torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-5)


def test_heads_folded_into_the_batch_and_dropout_that_drops() -> None:
    q, k, v = inputs(dims=3)
    fused: list[str] = []
    wanted = attention(q, k, v, torch.bmm, lambda s: s.softmax(-1))
    with waiting(fused):
        got = attention(q, k, v, torch.bmm, lambda s: s.softmax(-1))
    assert fused == ["yes"]
    torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-5)
    dropping = [lambda s: s.softmax(-1), lambda s: torch.nn.functional.dropout(s, 0.5)]
    torch.manual_seed(0)
    wanted = attention(q, k, v, torch.bmm, *dropping)
    torch.manual_seed(0)
    with waiting(fused):
        got = attention(q, k, v, torch.bmm, *dropping)
    assert fused == ["yes"]
    torch.testing.assert_close(got, wanted)


def test_where_the_kernel_may_drop_it_does_and_nobody_is_told_other_weights() -> None:
    q, k, _v = inputs()
    with pytest.MonkeyPatch.context() as patched:
        here = ("test_scores_that_wait.py", "times_keys", None, True)
        patched.setattr(torch, "matmul", makes_scores_wait(torch.matmul, *here))
        weights = torch.nn.functional.dropout(times_keys(torch.matmul, q, k).softmax(-1), 0.4)
        drawn = torch.stack([weights @ torch.eye(LENGTH).expand(2, 3, -1, -1) for _ in range(400)])
        with pytest.raises(RuntimeError, match="known to the kernel alone"):
            weights.sum()
    assert 0.39 < (drawn == 0).float().mean() < 0.41
    wanted = (q @ k.transpose(-2, -1)).softmax(-1)
    torch.testing.assert_close(drawn.mean(0), wanted, rtol=0.5, atol=0.02)


@pytest.mark.parametrize(
    ("scores", "mixed", "order"),
    [
        ("b h i d, b h j d -> b h i j", "b h i j, b h j d -> b h i d", (0, 1, 2, 3)),
        ("nqhd,nkhd->nhqk", "nhqk,nkhd->nqhd", (0, 2, 1, 3)),
        ("bhid,bhjd->bhij", "bhij,bhjd->bihd", (0, 1, 2, 3)),
    ],
)
def test_sums_by_letters_are_products_too(scores: str, mixed: str, order: tuple[int, ...]) -> None:
    q, k, v = (one.permute(order) for one in inputs())

    def attended() -> Tensor:
        weights = (torch.einsum(scores, q, k) * 0.25).softmax(dim=-1)
        return torch.einsum(mixed, weights, v)

    wanted = attended()
    fused: list[str] = []
    with waiting(fused, "attended"):
        got = attended()
    assert fused == ["yes"]
    torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "equation", ["bhid,bhjd->bhji", "bhid,bhjd->bij", "bhid,bhje->bhij", "bhid,bhjd->hbij"]
)
def test_other_sums_by_letters_are_what_they_were(equation: str) -> None:
    q, k, _ = inputs()

    def summed() -> Tensor:
        return torch.einsum(equation, q, k).softmax(-1) * 2

    with waiting([], "summed"):
        got = summed()
    torch.testing.assert_close(got, summed())


def test_under_autocast_the_kernel_gets_few_bits_as_the_products_would() -> None:
    q, k, v = inputs()
    fused: list[str] = []
    steps = (MASKED["padding in place"], SOFTENED["function"])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        wanted = attention(q, k, v, torch.matmul, *steps)
        with waiting(fused):
            got = attention(q, k, v, torch.matmul, *steps)
    assert fused == ["yes"]
    assert got.dtype == wanted.dtype == torch.bfloat16
    torch.testing.assert_close(got, wanted, rtol=0.05, atol=0.05)


def test_other_products_do_not_wait() -> None:
    q, k, _ = inputs()
    with waiting([], "somewhere_else"):
        assert type(times_keys(torch.matmul, q, k)) is Tensor
    with waiting([]):
        assert type(times_keys(torch.matmul, q[:, :, :4], k[:, :, :4])) is Tensor
        assert type(times_keys(torch.matmul, q[0, 0], k[0, 0])) is Tensor


def test_compiled_functions_see_the_products_as_they_are() -> None:
    q, k, v = inputs()
    with waiting([]):
        compiled = torch.compile(attention, backend="eager", fullgraph=True)
        got = compiled(q, k, v, torch.matmul, SOFTENED["function"])
    torch.testing.assert_close(got, attention(q, k, v, torch.matmul, SOFTENED["function"]))
