"""Attention in chunks on a CPU, its masks, its reader's twin and its operator."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kernels.attention_cases import CASES, Case, drawn, exact_results, named, packed, results
from tests.kernels.triton.accuracy import error_of

from ridgeline.errors import InputError
from ridgeline.kernels import flash_attention_chunks, flash_attention_numpy
from ridgeline.kernels.attention_mask import AttentionMask
from ridgeline.kernels.flash_attention import (
    Dropout,
    flash_attention,
    flash_attention_reference,
)

CPU = torch.device("cpu")


def check(case: Case, dtype: torch.dtype = torch.float32, most: float = 2e-6) -> None:
    leaves = drawn(case, dtype, CPU)
    found, upper = results(flash_attention, leaves, case)
    exact = exact_results(case, leaves, upper)
    for name, one in named(found).items():
        other = exact[name]
        seen = torch.isfinite(other)
        assert torch.equal(torch.isfinite(one), seen), name
        assert error_of(one[seen], other[seen]) < most, name


@pytest.mark.parametrize("name", CASES)
def test_results_and_every_gradient_are_those_of_float64(name: str) -> None:
    check(CASES[name])


@pytest.mark.slow
def test_chunks_of_any_size_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flash_attention_chunks, "_WEIGHTS_AT_ONCE", 500)
    for name in ("causal", "window both ways", "documents", "blocks", "dropout", "sequences"):
        check(CASES[name])


def test_double_stays_double_and_half_is_rounded_once() -> None:
    check(CASES["causal"], torch.float64, 1e-12)
    check(CASES["causal"], torch.bfloat16, 4e-3)


sizes = st.integers(0, 33)


@settings(max_examples=8, deadline=None)
@given(
    length=sizes,
    num_keys=sizes,
    group=st.integers(1, 3),
    causal=st.booleans(),
    window=st.none() | st.integers(1, 40),
    share=st.sampled_from([0.0, 0.4]),
)
def test_any_sizes_and_bands_agree_with_the_reference(
    length: int, num_keys: int, group: int, causal: bool, window: int | None, share: float
) -> None:
    check(
        Case(
            (2, 2 * group, 2, length, num_keys, 8),
            AttentionMask(causal=causal, window=window),
            {"dropout": Dropout(share, 3)},
        )
    )


def test_the_readers_twin_in_numpy_agrees_both_ways() -> None:
    for name in ("everything seen", "causal", "bottom right", "rows that see nothing"):
        case = CASES[name]
        leaves = drawn(case, torch.float64, CPU)
        found, upper = results(flash_attention_reference, leaves, case)
        group = case.sizes[1] // case.sizes[2]
        q, k, v, dout, out = (one.detach().numpy() for one in (*leaves, upper[0], found[0]))
        scale, causal = case.sizes[5] ** -0.5, case.mask.causal
        dq = np.zeros_like(q[0])
        for head in range(case.sizes[1]):
            given_ = (q[0, head], k[0, head // group], v[0, head // group])
            one, logs = flash_attention_numpy.forward(*given_, scale, causal=causal)
            np.testing.assert_allclose(one, out[0, head], rtol=1e-10, atol=1e-12)
            np.testing.assert_allclose(logs, found[1].detach().numpy()[0, head], rtol=1e-10)
            dq[head] = flash_attention_numpy.backward(
                dout[0, head], one, logs, *given_, scale, causal=causal
            )[0]
        plain = torch.autograd.grad(
            (flash_attention_reference(*leaves, mask=case.mask).out * upper[0]).sum(), leaves[0]
        )[0]
        np.testing.assert_allclose(dq, plain[0].numpy(), rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize(
    "name",
    [
        "sinks",
        *(pytest.param(n, marks=pytest.mark.slow) for n in ("dropout", "documents", "blocks")),
        pytest.param("sequences", marks=pytest.mark.slow),
    ],
)
def test_torch_checks_the_operator(name: str) -> None:
    case = CASES[name]
    arguments = operator_arguments(drawn(case, torch.float32, CPU), case)
    torch.library.opcheck(torch.ops.ridgeline.flash_attention.default, arguments)


def test_torch_compiles_it_whole() -> None:
    case = CASES["window"]
    leaves = drawn(case, torch.float32, CPU)

    def total(*given_: torch.Tensor) -> torch.Tensor:
        out, logs = flash_attention(*given_, mask=case.mask)
        return (out.tanh().sum() + logs.sum()) * 2

    compiled = torch.compile(total, fullgraph=True, backend="aot_eager")
    for a, b in zip(
        torch.autograd.grad(total(*leaves), leaves),
        torch.autograd.grad(compiled(*leaves), leaves),
        strict=True,
    ):
        torch.testing.assert_close(a, b)


def operator_arguments(leaves: list[torch.Tensor], case: Case) -> tuple[object, ...]:
    """What the function hands to the operator."""
    seen: list[tuple[object, ...]] = []
    from torch.utils._python_dispatch import TorchDispatchMode

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            if func is torch.ops.ridgeline.flash_attention.default:
                seen.append(args)
            return func(*args, **(kwargs or {}))

    plain = [leaf.detach() for leaf in leaves]
    with Watch():
        flash_attention(
            *plain[:3], mask=case.mask, sinks=plain[3] if case.sinks else None, **case.options
        )
    (found,) = seen
    return tuple(
        one.detach().requires_grad_() if isinstance(one, torch.Tensor) and at < 4 else one
        for at, one in enumerate(found)
    )


def test_a_seed_drops_the_same_weights_and_another_drops_others() -> None:
    queries = torch.randn(1, 2, 24, 8)

    def out(dropout: Dropout) -> torch.Tensor:
        return flash_attention(queries, queries, queries, dropout=dropout).out

    assert torch.equal(out(Dropout(0.5, 1)), out(Dropout(0.5, torch.tensor(1))))
    assert not torch.equal(out(Dropout(0.5, 1)), out(Dropout(0.5, 2)))
    torch.manual_seed(3)
    first = out(Dropout(0.5))
    assert not torch.equal(first, out(Dropout(0.5)))
    torch.manual_seed(3)
    assert torch.equal(first, out(Dropout(0.5)))


def test_merging_two_halves_of_the_keys_by_their_log_sums_gives_the_whole() -> None:
    q, k, v = (torch.randn(1, 2, 9, 8, requires_grad=True) for _ in "qkv")
    whole = flash_attention(q, k, v)
    halves = [flash_attention(q, k[:, :, at], v[:, :, at]) for at in (slice(4), slice(4, 9))]
    logs = torch.stack([half.log_sums for half in halves])
    share = (logs - logs.logsumexp(0)).exp()[..., None]
    merged = share[0] * halves[0].out + share[1] * halves[1].out
    torch.testing.assert_close(merged, whole.out)
    upper = torch.randn_like(merged)
    for a, b in zip(
        torch.autograd.grad(merged, (q, k, v), upper),
        torch.autograd.grad(whole.out, (q, k, v), upper),
        strict=True,
    ):
        torch.testing.assert_close(a, b)


WRONG = {
    "KV a divisor of H": lambda q: flash_attention(q, q[:, :3], q[:, :3]),
    "of one dtype": lambda q: flash_attention(q, q.double(), q),
    r"sinks are \(3,\); give \[4\]": lambda q: flash_attention(q, q, q, sinks=torch.ones(3)),
    "a window of 0 keys": lambda q: flash_attention(q, q, q, mask=AttentionMask(window=0)),
    "a dropout of 1.0": lambda q: flash_attention(q, q, q, dropout=Dropout(1.0)),
    "give one number a token": lambda q: flash_attention(
        q, q, q, mask=AttentionMask(documents=torch.zeros(2, 4, dtype=torch.int64))
    ),
    "blocks of 24; give a power of two": lambda q: flash_attention(
        q, q, q, mask=AttentionMask(blocks=torch.ones(1, 1, 1, 1).bool(), block_size=24)
    ),
    r"give bool \[1 or 2, 1 or 4, 1, 1\]": lambda q: flash_attention(
        q, q, q, mask=AttentionMask(blocks=torch.ones(1, 1, 2, 1).bool())
    ),
    r"give \[T, H, D\] and twice \[S, KV, D\]": lambda q: flash_attention(
        q, q, q, mask=AttentionMask(sequences=packed((5,), (5,)))
    ),
}


@pytest.mark.parametrize("name", ["documents", "blocks", "sequences"])
def test_a_mask_on_another_device_is_refused_with_the_call_that_moves_it(name: str) -> None:
    case = CASES[name]
    leaves = [leaf.to("meta") for leaf in drawn(case, torch.float32, CPU)]
    with pytest.raises(InputError, match=r"lie on cpu and queries on meta; give mask.to\('meta'\)"):
        flash_attention(*leaves[:3], mask=case.mask)
    out = flash_attention(*leaves[:3], mask=case.mask.to(torch.device("meta"))).out
    assert out.shape == leaves[0].shape


@pytest.mark.parametrize("words", WRONG)
def test_what_does_not_fit_is_refused(words: str) -> None:
    with pytest.raises(InputError, match=words):
        WRONG[words](torch.ones(2, 4, 5, 8))
