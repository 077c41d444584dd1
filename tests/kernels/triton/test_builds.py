"""Every launch compiles ahead of time for sm_80 and sm_90, to machine code that fits.

The wrappers run on tensors without data; what they would have launched is compiled. Shapes are
those of an 8B model (32 query heads, 8 key heads of 128) and some with everything switched on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
import triton
from tests.kernels.triton.compiling import SHARED_BYTES, TARGETS, Recorder, as_launched
from tests.kernels.triton.conftest import INTERPRETED

from ridgeline.kernels.paged_attention import LayerCache, PackedTokens
from ridgeline.kernels.triton import linear_int4, linear_int8, paged_attention, weight_only

pytestmark = pytest.mark.skipif(INTERPRETED, reason="the interpreter compiles nothing")
ARCHITECTURES = {80: "sm_80", 90: "sm_90"}


def build(recorder: Recorder, arch: int) -> None:
    """Compile all that was launched."""
    target = ARCHITECTURES[arch]
    assert recorder.launches
    for args, options in recorder.launches:
        source, chosen = as_launched(recorder.kernel, args, options)
        built = triton.compile(source, target=TARGETS[target], options=chosen)
        assert built.asm["cubin"]
        assert built.metadata.shared <= SHARED_BYTES[target]


def packed(lengths: list[int], max_context: int) -> PackedTokens:
    count, tokens = len(lengths), sum(lengths)
    empty = {"dtype": torch.int32, "device": "meta"}
    return PackedTokens(
        query_starts=torch.empty(count + 1, **empty),
        context_lengths=torch.empty(count, **empty),
        block_tables=torch.empty(count, max_context // 16, **empty),
        slots=torch.empty(tokens, dtype=torch.int64, device="meta"),
        max_queries=max(lengths),
        max_context=max_context,
    )


def cache(
    dtype: torch.dtype, heads: int, dim: int, *, scaled: bool, fixed: bool = False
) -> LayerCache:
    blocks = [torch.empty(64, heads, 16, dim, dtype=dtype, device="meta") for _ in "kv"]
    of = (heads,) if fixed else (64, heads, 16)
    scales = [torch.empty(of, device="meta") if scaled else None for _ in "kv"]
    return LayerCache(*blocks, *scales)


CASES = {
    "decode": (torch.bfloat16, torch.bfloat16, 128, [1, 1], {}),
    "many-decodes": (torch.float16, torch.float16, 128, [1] * 256, {}),
    "prompt": (torch.bfloat16, torch.bfloat16, 128, [512, 1], {}),
    "decode-fp8": (torch.bfloat16, torch.float8_e4m3fn, 128, [1, 1], {}),
    "prompt-int8": (torch.bfloat16, torch.int8, 128, [512], {}),
    "decode-int8-fixed": (torch.bfloat16, torch.int8, 128, [1, 1], {}),
    "prompt-fp8-fixed": (torch.bfloat16, torch.float8_e4m3fn, 128, [512], {}),
    "prompt-fp32": (torch.float32, torch.float32, 64, [512], {}),
    "decode-fp32": (torch.float32, torch.float32, 128, [1], {}),
    "everything": (torch.bfloat16, torch.float8_e4m3fn, 128, [64], {"window": 99, "softcap": 30.0}),
    "widest": (torch.float32, torch.float32, 256, [64], {}),
}
QUICK = {("decode", 80), ("decode", 90), ("prompt", 90), ("everything", 80)}


def launches(cases: Sequence[str], quick: set[tuple[str, int]]) -> list[Any]:
    """Each case for each architecture; compiling all of them takes a minute."""
    return [
        pytest.param(case, arch, marks=() if (case, arch) in quick else pytest.mark.slow)
        for case in cases
        for arch in ARCHITECTURES
    ]


@pytest.mark.sweep(every=4)
@pytest.mark.parametrize(("case", "arch"), launches(list(CASES), QUICK))
def test_attention_builds(monkeypatch: pytest.MonkeyPatch, case: str, arch: int) -> None:
    dtype, stored, dim, lengths, options = CASES[case]
    recorders = {}
    for name in ("attention_kernel", "reduce_kernel", "write_cache_kernel"):
        recorders[name] = Recorder(getattr(paged_attention, name))
        monkeypatch.setattr(paged_attention, name, recorders[name])
    monkeypatch.setattr(paged_attention, "num_processors", lambda _: 132)
    held = cache(stored, 8, dim, scaled=stored != dtype, fixed=case.endswith("fixed"))
    described = packed(lengths, 2048)
    queries = torch.empty(sum(lengths), 32, dim, dtype=dtype, device="meta")
    sinks = torch.empty(32, device="meta") if case == "everything" else None
    paged_attention.write_cache(queries[:, :8], queries[:, 8:16], held, described)
    paged_attention.paged_attention(queries, held, described, scale=0.1, sinks=sinks, **options)
    build(recorders["attention_kernel"], arch)
    build(recorders["write_cache_kernel"], arch)
    (call,) = recorders["attention_kernel"].launches
    if call[1]["SPLIT"]:
        build(recorders["reduce_kernel"], arch)


LINEAR = [f"{kind}-{rows}" for kind in ("int8", "fp8", "int4", "fp32int4") for rows in (1, 8, 512)]
QUICK_LINEAR = {("int8-1", 90), ("int8-8", 80), ("fp8-8", 80), ("int4-1", 80), ("int4-512", 90)}


@pytest.mark.parametrize(("case", "arch"), launches(LINEAR, QUICK_LINEAR))
def test_linear_layers_build(monkeypatch: pytest.MonkeyPatch, case: str, arch: int) -> None:
    kind, rows = case.split("-", maxsplit=1)[0], int(case.split("-")[1])
    recorders = {}
    for name in ("vector_kernel", "tile_kernel"):
        recorders[name] = Recorder(getattr(weight_only, name))
        monkeypatch.setattr(weight_only, name, recorders[name])
    monkeypatch.setattr(weight_only, "num_processors", lambda _: 132)
    four, depth, outputs = kind.endswith("int4"), 4096, 1024
    stored = torch.float8_e4m3fn if kind == "fp8" else torch.uint8 if four else torch.int8
    weight = torch.empty(outputs, depth // (2 if four else 1), dtype=stored, device="meta")
    groups = depth // 128 if four else 1
    scales = torch.empty(groups, outputs, dtype=torch.bfloat16, device="meta")
    zeros = torch.empty(groups, outputs, dtype=torch.int8, device="meta") if four else None
    dtype = torch.float32 if kind.startswith("fp32") else torch.bfloat16
    x = torch.empty(rows, depth, dtype=dtype, device="meta")
    bias = torch.empty(outputs, device="meta")
    out = (linear_int4 if four else linear_int8).linear(x, weight, scales, zeros, bias)
    assert out.shape == (rows, outputs)
    build(recorders["vector_kernel" if rows == 1 else "tile_kernel"], arch)
