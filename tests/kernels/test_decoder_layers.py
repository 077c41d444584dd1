"""A stack of layers in one operator against the references of its parts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from ridgeline.kernels import linear, linear_int4, linear_int8, linear_w8a8
from ridgeline.kernels.cpu.compiler import settings
from ridgeline.kernels.decoder_layers import LINEARS, Layers, decoder_layers, reference
from ridgeline.kernels.paged_attention import LayerCache, PackedTokens

HIDDEN, HEADS, KV_HEADS, SIZE, INNER, LAYERS = 64, 6, 2, 16, 128, 2
SHAPES = {
    "q": (96, HIDDEN), "k": (32, HIDDEN), "v": (32, HIDDEN), "o": (HIDDEN, 96),
    "gate": (INNER, HIDDEN), "up": (INNER, HIDDEN), "down": (HIDDEN, INNER),
}  # fmt: skip
BLOCK, NUM_BLOCKS = 4, 24
needs_byte_products = pytest.mark.skipif(
    not settings().multiplies_bytes, reason="no products of bytes"
)
SPANS = ((0, 9), (12, 1), (5, 3))
"""Tokens in the cache already, and new ones: a prompt, a decode, a chunk."""


def layers_of(weights: str, dtype: torch.dtype, **changes: Any) -> Layers:
    generator = torch.Generator().manual_seed(1)

    def drawn(*shape: int, around: float = 0.0) -> Tensor:
        return torch.randn(*shape, generator=generator) * 0.2 + around

    panels, scales, biases, offsets = [], [], [], []
    for _ in range(LAYERS):
        for name in LINEARS:
            weight = drawn(*SHAPES[name])
            scale = sums = None
            if weights == "int8":
                levels, scale = linear_int8.quantise(weight)
                panels.append(linear_int8.pack(levels))
            elif weights in ("w8a8", "w8a8 in fixed steps"):
                packed, scale, sums = linear_w8a8.pack(*linear_int8.quantise(weight))
                panels.append(packed)
            elif weights == "int4":
                levels, scale = linear_int4.quantise(weight, 32)
                panels.append(linear_int4.pack(levels))
            else:
                panels.append(linear.pack(weight.to(dtype)))
            if scale is not None and sums is None:
                scale = linear_int8.pack_groups(scale)
            scales.append(scale)
            offsets.append(sums)
            biases.append(drawn(SHAPES[name][0]) if name in "qkv" else None)
    settings: dict[str, Any] = {
        "norms": [drawn(HIDDEN, around=1.0).to(dtype) for _ in range(2 * LAYERS)],
        "head_norms": [None] * (2 * LAYERS),
        "heads": HEADS,
        "inner": INNER,
        "eps": 1e-5,
        "offset": 0.0,
        "round_first": True,
        "gelu": False,
        "scale": 0.3,
        "windows": [0] * LAYERS,
        "softcap": 0.0,
        "offsets": offsets,
        "steps": [0.05 if "fixed" in weights else 0.0] * (4 * LAYERS),
        **changes,
    }
    return Layers(panels=panels, scales=scales, biases=biases, **settings)


def step(
    dtype: torch.dtype, stored: torch.dtype, *, fixed: bool = False
) -> tuple[Tensor, Tensor, Tensor, Any, PackedTokens]:
    """Embedded tokens, cos, sin, caches with what came before, and who is who."""
    generator = torch.Generator().manual_seed(2)
    tables = torch.randperm(NUM_BLOCKS, generator=generator)[:18].view(3, 6)
    places = [(s, at) for s, (past, new) in enumerate(SPANS) for at in range(past, past + new)]
    slots = [int(tables[s, at // BLOCK]) * BLOCK + at % BLOCK for s, at in places]
    angles = torch.tensor([at for _, at in places])[:, None] * 0.7 ** torch.arange(SIZE // 2)
    angles = torch.cat((angles, angles), 1)
    counts = torch.tensor([0] + [new for _, new in SPANS])
    packed = PackedTokens(
        query_starts=counts.cumsum(0).int(),
        context_lengths=torch.tensor([past + new for past, new in SPANS]).int(),
        block_tables=tables.int(),
        slots=torch.tensor(slots),
        max_queries=9,
        max_context=13,
    )
    shape = (NUM_BLOCKS, KV_HEADS, BLOCK, SIZE)
    caches = []
    for _ in range(LAYERS):
        held = [torch.randn(shape, generator=generator) for _ in range(2)]
        if stored in (torch.int8, torch.float8_e4m3fn):
            held = [(one * 40).clamp(-127, 127).to(stored) for one in held]
            of = shape[1:2] if fixed else shape[:3]
            scales = [(torch.rand(of, generator=generator) + fixed) / 40 for _ in range(2)]
            caches.append(LayerCache(*held, *scales))
        else:
            caches.append(LayerCache(*(one.to(stored) for one in held)))
    x = torch.randn(len(places), HIDDEN, generator=generator).to(dtype)
    return x, angles.cos().to(dtype), angles.sin().to(dtype), caches, packed


def copied(caches: list[LayerCache]) -> list[LayerCache]:
    return [
        LayerCache(
            one.keys.clone(),
            one.values.clone(),
            None if one.key_scales is None else one.key_scales.clone(),
            None if one.value_scales is None else one.value_scales.clone(),
        )
        for one in caches
    ]


VARIANTS: dict[str, dict[str, Any]] = {
    "as Llama": {},
    "norms of heads": {"head_norms": "norms"},
    "a window in one layer": {"windows": [5, 0]},
    "as Gemma": {"offset": 1.0, "round_first": False, "gelu": True, "softcap": 4.0},
}


def variant(name: str, dtype: torch.dtype) -> dict[str, Any]:
    changes = dict(VARIANTS[name])
    if "head_norms" in changes:
        generator = torch.Generator().manual_seed(3)
        norms = [torch.rand(SIZE, generator=generator) + 0.5 for _ in range(2 * LAYERS)]
        changes["head_norms"] = [one.to(dtype) for one in norms]
    return changes


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("weights", ["model", "int8", "int4"])
def test_in_float32_it_is_the_parts_one_after_another(weights: str, name: str) -> None:
    layers = layers_of(weights, torch.float32, **variant(name, torch.float32))
    x, cos, sin, caches, packed = step(torch.float32, torch.float32)
    expected_caches = copied(caches)
    expected = reference(x, cos, sin, layers, expected_caches, packed)
    found = decoder_layers(x, cos, sin, layers, caches, packed)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    for mine, theirs in zip(caches, expected_caches, strict=True):
        torch.testing.assert_close(mine.keys, theirs.keys, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(mine.values, theirs.values, rtol=1e-4, atol=1e-4)


@needs_byte_products
@pytest.mark.parametrize(
    ("weights", "name", "dtype", "share"),
    [
        *(("w8a8", name, torch.float32, 0.003) for name in VARIANTS),
        ("w8a8 in fixed steps", "as Llama", torch.float32, 0.003),
        ("w8a8", "as Llama", torch.bfloat16, 0.03),
    ],
)
def test_rounded_activations_are_the_parts_but_for_levels_that_tip(
    weights: str, name: str, dtype: torch.dtype, share: float
) -> None:
    layers = layers_of(weights, dtype, **variant(name, dtype))
    x, cos, sin, caches, packed = step(dtype, dtype)
    expected = reference(x, cos, sin, layers, copied(caches), packed).float()
    found = decoder_layers(x, cos, sin, layers, caches, packed).float()
    assert (found - expected).abs().mean() <= share * expected.std()


@pytest.mark.parametrize("stored", [torch.int8, torch.float8_e4m3fn])
def test_a_cache_with_fixed_scales_is_read_and_written_as_by_the_parts(
    stored: torch.dtype,
) -> None:
    layers = layers_of("model", torch.float32)
    x, cos, sin, caches, packed = step(torch.float32, stored, fixed=True)
    expected_caches = copied(caches)
    expected = reference(x, cos, sin, layers, expected_caches, packed)
    found = decoder_layers(x, cos, sin, layers, caches, packed)
    # A key on the border between two levels may go either way.
    assert (found - expected).abs().mean() <= 1e-3 * expected.abs().mean()
    for mine, theirs in zip(caches, expected_caches, strict=True):
        apart = (mine.keys.float() - theirs.keys.float()) != 0
        assert apart.float().mean() <= 0.01
        assert torch.equal(mine.key_scales, theirs.key_scales)


@pytest.mark.parametrize("stored", [torch.bfloat16, torch.int8, "int8, fixed"], ids=str)
@pytest.mark.parametrize("weights", ["model", "int8", "int4"])
def test_in_bf16_it_is_as_near_to_float32_as_the_parts_are(
    weights: str, stored: torch.dtype | str
) -> None:
    fixed = isinstance(stored, str)
    stored = torch.int8 if isinstance(stored, str) else stored
    layers = layers_of(weights, torch.bfloat16)
    x, cos, sin, caches, packed = step(torch.bfloat16, stored, fixed=fixed)
    exact = replace(
        layers,
        panels=[
            linear.pack(linear.unpack(one, one.shape[0] * 32, one.shape[1] * 2).float())
            if one.dtype == torch.bfloat16
            else one
            for one in layers.panels
        ],
        norms=[one.float() for one in layers.norms],
    )
    wide = copied(caches)
    if stored == torch.bfloat16:
        wide = [LayerCache(one.keys.float(), one.values.float()) for one in wide]
    expected = reference(x.float(), cos.float(), sin.float(), exact, wide, packed)
    in_parts = reference(x, cos, sin, layers, copied(caches), packed).float()
    found = decoder_layers(x, cos, sin, layers, caches, packed).float()
    assert (found - expected).abs().mean() <= 1.1 * (in_parts - expected).abs().mean()


@pytest.mark.parametrize("weights", ["int8", pytest.param("w8a8", marks=needs_byte_products)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_row_has_the_same_bits_alone_and_with_any_number_of_threads(
    dtype: torch.dtype, weights: str
) -> None:
    layers = layers_of(weights, dtype)
    x, cos, sin, caches, packed = step(dtype, dtype)
    whole = []
    before = torch.get_num_threads()
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        whole.append(decoder_layers(x, cos, sin, layers, copied(caches), packed))
    torch.set_num_threads(before)
    assert torch.equal(whole[0], whole[1])
    assert torch.equal(whole[0], whole[2])
    decode = slice(9, 10)
    alone = PackedTokens(
        query_starts=torch.tensor([0, 1]).int(),
        context_lengths=packed.context_lengths[1:2],
        block_tables=packed.block_tables[1:2],
        slots=packed.slots[decode],
        max_queries=1,
        max_context=13,
    )
    found = decoder_layers(x[decode], cos[decode], sin[decode], layers, caches, alone)
    assert torch.equal(found, whole[0][decode])


def test_padding_writes_nothing_and_disturbs_nobody() -> None:
    layers = layers_of("model", torch.float32)
    x, cos, sin, caches, packed = step(torch.float32, torch.float32)
    padded = replace(packed, slots=torch.cat((packed.slots, torch.tensor([-1, -1]))))
    more = [torch.cat((one, one[:2])) for one in (x, cos, sin)]
    expected_caches = copied(caches)
    expected = decoder_layers(x, cos, sin, layers, expected_caches, packed)
    found = decoder_layers(*more, layers, caches, padded)
    assert torch.equal(found[: len(x)], expected)
    assert found.isfinite().all()
    assert torch.equal(caches[0].keys, expected_caches[0].keys)


def test_tables_and_slots_out_of_range_are_refused() -> None:
    layers = layers_of("model", torch.float32)
    x, cos, sin, caches, packed = step(torch.float32, torch.float32)
    for wrong in (
        replace(packed, slots=packed.slots + NUM_BLOCKS * BLOCK),
        replace(packed, block_tables=packed.block_tables + NUM_BLOCKS),
        replace(packed, slots=packed.slots[1:]),
    ):
        with pytest.raises(RuntimeError):
            decoder_layers(x, cos, sin, layers, caches, wrong)
