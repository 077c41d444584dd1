"""Attention in Gluon compiles for Hopper to what it is for, and agrees where there is one."""

from __future__ import annotations

import pytest
import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.experimental.gluon._runtime import GluonASTSource
from triton.runtime.jit import mangle_type

from ridgeline.kernels.attention_mask import AttentionMask
from ridgeline.kernels.check.compiled import _read_nvidia
from ridgeline.kernels.flash_attention import flash_attention_reference
from ridgeline.kernels.gluon import hopper_attention

SHARED_BYTES = 232_448


@pytest.mark.slow
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dim", hopper_attention.KEYS)
def test_it_multiplies_from_shared_memory_that_a_warp_of_its_own_fills(
    dim: int, causal: bool
) -> None:
    queries = torch.empty(2, 8, 4096, dim, dtype=torch.bfloat16)
    wide, narrow = (
        mangle_type(hopper_attention.tiles_of(queries, rows))
        for rows in (128, hopper_attention.KEYS[dim])
    )
    signature = {
        "queries": wide, "keys": narrow, "values": narrow, "out": "*bf16", "log_sums": "*fp32",
        "scale": "fp32", "num_queries": "i32", "num_keys": "i32",
    }  # fmt: skip
    constants = {"GROUP": 4, "CAUSAL": causal, "STAGES": 2}
    signature |= dict.fromkeys(constants, "constexpr")
    facts = {(place,): [["tt.divisibility", 16]] for place in (3, 4)}
    source = GluonASTSource(hopper_attention.forward_kernel, signature, constants, facts)
    built = triton.compile(
        source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 8, "enable_fp_fusion": True}
    )
    needs = _read_nvidia(built)
    assert needs["stack_bytes"] == needs["spill_instructions"] == 0
    assert needs["registers"] <= 168  # of eight warps and one that loads
    assert built.metadata.shared <= SHARED_BYTES
    counts = needs["instructions"]
    # Scores: a multiply for each 16 of the depth; sums: one for each 16 keys.
    assert counts["HGMMA"] == dim // 16 + hopper_attention.KEYS[dim] // 16
    # A box of the TMA is 64 numbers wide at most.
    assert counts["UTMALDG"] == 3 * dim // 64
    assert "setmaxnreg.dec" in built.asm["ptx"]
    assert "HMMA" not in counts


@pytest.mark.gpu
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("dim", "lengths"), [(64, (300, 300)), (128, (130, 515))])
def test_it_agrees_with_float64(dim: int, lengths: tuple[int, int], causal: bool) -> None:
    if not torch.cuda.is_available() or torch.cuda.get_device_capability()[0] != 9:
        pytest.skip("needs a Hopper GPU")
    made = {"dtype": torch.bfloat16, "device": "cuda"}
    queries = torch.randn(2, 4, lengths[0], dim, **made)
    keys, values = (torch.randn(2, 2, lengths[1], dim, **made) for _ in "kv")
    out, log_sums = hopper_attention.forward(queries, keys, values, scale=dim**-0.5, causal=causal)
    exact = flash_attention_reference(
        queries.double(), keys.double(), values.double(), mask=AttentionMask(causal=causal)
    )
    assert (out - exact.out).norm() < 5e-3 * exact.out.norm()
    assert (log_sums - exact.log_sums).abs().max() < 1e-3


def test_a_size_of_heads_that_it_lacks_is_refused() -> None:
    queries = torch.empty(1, 1, 8, 80, dtype=torch.bfloat16)
    with pytest.raises(Exception, match="heads of 80: the Hopper kernel takes 64 and 128"):
        hopper_attention.forward(queries, queries, queries, scale=0.1, causal=True)
