"""2:4 as the hardware reads it, against PyTorch's own conversion."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.sparse._semi_structured_conversions import (
    sparse_semi_structured_from_dense_cutlass,
    sparse_semi_structured_to_dense_cutlass,
)

from ridgeline.compress.saved.two_of_four import pack, unpack
from ridgeline.errors import InputError
from ridgeline.kernels.masks import keep_n_of_m

DTYPES = [torch.float16, torch.bfloat16, torch.int8]


def two_of_four(rows: int, columns: int, dtype: torch.dtype, seed: int, sparser: bool) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randint(1, 100, (rows, columns), generator=generator).to(dtype)
    order = torch.rand(rows, columns, generator=generator)
    weight = weight * keep_n_of_m(order, 2, 4)
    if sparser:
        weight = weight * (torch.rand(rows, columns, generator=generator) > 0.5)
    return weight.to(dtype)


@given(
    tiles=st.tuples(st.integers(1, 3), st.integers(1, 4)),
    dtype=st.sampled_from(DTYPES),
    seed=st.integers(0, 2**31 - 1),
    sparser=st.booleans(),
)
@settings(max_examples=40, deadline=None)
def test_bits_are_those_of_pytorch_and_come_back(
    tiles: tuple[int, int], dtype: torch.dtype, seed: int, sparser: bool
) -> None:
    weight = two_of_four(32 * tiles[0], 64 * tiles[1], dtype, seed, sparser)
    values, metadata = sparse_semi_structured_from_dense_cutlass(weight)
    found = pack(weight)
    assert torch.equal(found.values, values)
    assert found.metadata.dtype == metadata.dtype
    assert torch.equal(found.metadata, metadata)
    assert torch.equal(unpack(found), weight)
    assert torch.equal(
        sparse_semi_structured_to_dense_cutlass(found.values, found.metadata), weight
    )


def test_it_takes_nine_sixteenths_of_the_bytes() -> None:
    weight = two_of_four(64, 128, torch.bfloat16, 0, sparser=False)
    assert pack(weight).num_bytes * 16 == weight.nbytes * 9


@pytest.mark.parametrize(
    ("weight", "named"),
    [
        (torch.ones(32, 32, dtype=torch.bfloat16), "prune by 2:4"),
        (torch.zeros(32, 40, dtype=torch.bfloat16), "tiles"),
        (torch.zeros(30, 32, dtype=torch.bfloat16), "tiles"),
        (torch.zeros(32, 32), "float32"),
    ],
)
def test_what_cannot_be_packed_is_refused(weight: Tensor, named: str) -> None:
    with pytest.raises(InputError, match=named):
        pack(weight)
