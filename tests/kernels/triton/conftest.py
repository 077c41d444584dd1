"""Where the kernels run: on a GPU, or on the CPU under Triton's interpreter.

The interpreter is chosen when `triton.jit` reads a kernel, so for a whole process:
`test_interpreter.py` starts one that runs these same tests.
"""

from __future__ import annotations

import os

import pytest
import torch

from ridgeline.kernels.check import scalars
from ridgeline.kernels.paged_attention import LayerCache, PackedTokens, write_cache_reference

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
if INTERPRETED:
    scalars.install()


@pytest.fixture(
    params=[
        pytest.param("interpreter", id="interpreter"),
        pytest.param("cuda", id="cuda", marks=pytest.mark.gpu),
    ]
)
def device(request: pytest.FixtureRequest) -> torch.device:
    """On which to make tensors."""
    if request.param == "interpreter":
        if not INTERPRETED:
            pytest.skip("runs in the process that test_interpreter.py starts")
        torch.set_num_threads(1)
        return torch.device("cpu")
    if INTERPRETED or not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    return torch.device("cuda")


def packed_of(
    lengths: list[tuple[int, int]], block: int, device: torch.device, num_blocks: int
) -> PackedTokens:
    """Sequences of (queries, context), their blocks scattered at random."""
    draw = torch.Generator().manual_seed(7)
    free = torch.randperm(num_blocks, generator=draw).tolist()
    widest = max(1, *(-(-context // block) for _, context in lengths))
    tables = torch.full((len(lengths), widest), 2**30, dtype=torch.int32)
    slots = []
    for row, (queries, context) in enumerate(lengths):
        for column in range(-(-context // block)):
            tables[row, column] = free.pop()
        for at in range(context - queries, context):
            slots.append(int(tables[row, at // block]) * block + at % block if at >= 0 else -1)
    starts = torch.tensor([0, *(queries for queries, _ in lengths)]).cumsum(0)
    return PackedTokens(
        query_starts=starts.to(torch.int32).to(device),
        context_lengths=torch.tensor([c for _, c in lengths], dtype=torch.int32, device=device),
        block_tables=tables.to(device),
        slots=torch.tensor(slots, dtype=torch.int64, device=device),
        max_queries=max(queries for queries, _ in lengths),
        max_context=max(1, *(context for _, context in lengths)),
    )


def filled_cache(
    shape: tuple[int, int, int, int],
    dtype: torch.dtype,
    stored: torch.dtype | None,
    device: torch.device,
    *,
    fixed: bool = False,
) -> LayerCache:
    """Random keys and values in every slot, stored as `stored` with scales, or as they are."""
    draw = torch.Generator().manual_seed(11)
    blocks, heads, block, dim = shape
    quantised = stored is not None
    scales = torch.zeros(shape[:3])
    if fixed:
        scales = torch.linspace(1.0, 1.5, heads) / (50 if stored == torch.int8 else 170)
    cache = LayerCache(
        keys=torch.zeros(shape, dtype=stored or dtype, device=device),
        values=torch.zeros(shape, dtype=stored or dtype, device=device),
        key_scales=scales.to(device) if quantised else None,
        value_scales=scales.clone().to(device) if quantised else None,
    )
    rows = torch.randn(2, blocks * block, heads, dim, generator=draw).to(dtype).to(device)
    empty = torch.zeros(0, dtype=torch.int32, device=device)
    slots = torch.arange(blocks * block, device=device)
    write_cache_reference(rows[0], rows[1], cache, PackedTokens(empty, empty, empty, slots, 1, 1))
    return cache
