"""What the first rank tells the others to do, as bytes: compute a step, copy blocks, probe.

The scheduler's decisions are all in them, so that the other ranks keep no books.
"""

from __future__ import annotations

import msgspec
import torch
from torch import Tensor

from ridgeline.kernels.paged_attention import PackedTokens
from ridgeline.serve.config import EngineConfig
from ridgeline.serve.model.batch import StepBatch


class Meet(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """What a rank is told first, namely which one it is and where the others are found."""

    config: EngineConfig
    rank: int
    meeting: str
    """The file by which they find each other."""


class ComputeStep(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """One forward; the fields of `StepBatch` and `PackedTokens`, tensors as their bytes."""

    tokens: bytes
    positions: bytes
    logit_rows: bytes
    query_starts: bytes
    context_lengths: bytes
    block_tables: bytes
    slots: bytes
    max_queries: int
    max_context: int
    recent: int | None
    first: int
    number: int | None = None
    """The name of a step whose second half is computed later (`FinishStep`); None: it is whole."""


class FinishStep(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The second half of a step, for those who have the first stage."""

    number: int


class CopyBlocks(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Blocks that are written to by one of two sequences that shared them."""

    pairs: tuple[tuple[int, int], ...]
    """Numbers of blocks, from which and to which."""


class ProbeRanks(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """One token of nobody's, to see whether the ranks can compute at all."""


class Leave(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """There is nothing more to compute."""


RankWork = ComputeStep | FinishStep | CopyBlocks | ProbeRanks | Leave
decode_meeting = msgspec.msgpack.Decoder(Meet).decode
decode_work = msgspec.msgpack.Decoder(RankWork).decode
encode = msgspec.msgpack.Encoder().encode


def compute_step(batch: StepBatch, number: int | None = None) -> ComputeStep:
    """A step's tensors, ready to be sent; `number` where it is begun only."""
    packed = batch.packed
    assert packed.seen is None, "draft heads, which guess trees, are not cut over ranks"
    return ComputeStep(
        tokens=_bytes(batch.tokens),
        positions=_bytes(batch.positions),
        logit_rows=_bytes(batch.logit_rows),
        query_starts=_bytes(packed.query_starts),
        context_lengths=_bytes(packed.context_lengths),
        block_tables=_bytes(packed.block_tables),
        slots=_bytes(packed.slots),
        max_queries=packed.max_queries,
        max_context=packed.max_context,
        recent=packed.recent,
        first=packed.first,
        number=number,
    )


def step_batch(work: ComputeStep, device: torch.device) -> StepBatch:
    """The tensors of a step that was sent."""

    def tensor(content: bytes, dtype: torch.dtype) -> Tensor:
        if not content:
            return torch.empty(0, dtype=dtype, device=device)
        return torch.frombuffer(bytearray(content), dtype=dtype).to(device, non_blocking=True)

    contexts = tensor(work.context_lengths, torch.int32)
    packed = PackedTokens(
        query_starts=tensor(work.query_starts, torch.int32),
        context_lengths=contexts,
        block_tables=tensor(work.block_tables, torch.int32).view(len(contexts), -1),
        slots=tensor(work.slots, torch.int64),
        max_queries=work.max_queries,
        max_context=work.max_context,
        recent=work.recent,
        first=work.first,
    )
    return StepBatch(
        tokens=tensor(work.tokens, torch.int64),
        positions=tensor(work.positions, torch.int64),
        packed=packed,
        logit_rows=tensor(work.logit_rows, torch.int64),
    )


def _bytes(tensor: Tensor) -> bytes:
    return tensor.cpu().contiguous().numpy().tobytes()
