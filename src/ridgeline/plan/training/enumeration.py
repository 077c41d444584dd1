"""Every valid layout of a model on so many devices, as arrays, in chunks of bounded size.

A layout is valid when a framework could run it:

- dp · tp · pp · cp = devices; dp · micro-batch divides the global batch;
- tp divides the query heads and the MLP width, and the key heads are split or copied evenly
  (kv_heads a multiple of tp, or tp a multiple of kv_heads); tp stays within the fast domain
  unless `Space.widest_tensor` says otherwise;
- context parallelism cuts the sequence into 2 · cp equal pieces (the balanced ring);
- pp · vpp ≤ layers. Plain pipelines may have uneven stages, but none empty; interleaved ones
  need equal chunks and a number of micro-batches that pp divides (Narayanan et al. 2021,
  section 2.2);
- ep divides the experts, and ep · etp the ranks of one pipeline stage; etp is 1 or tp;
- `zero` 0, or 1 to 3 over any divisor of dp · cp. Stage 2 needs a single micro-batch: of several,
  either each scatters its gradients (the traffic of stage 3) or they add up whole on every rank
  (the memory of stage 1), so that it is no layout of its own; DeepSpeed's pipeline refuses it.
- Nothing is offloaded: `search.py` turns to that for layouts that do not fit.

Left out because another layout is never worse: tensor parallelism without sequence parallelism
where the sequence can be cut (same traffic, more memory: Korthikanti et al. 2022, section 4.2.2),
GPipe (the bubble of 1F1B, more memory), and micro-batches of which even the layers' inputs
alone exceed the device's memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from ridgeline.cost.arrays import Ints
from ridgeline.cost.training.layouts import PRECISIONS, RECOMPUTES, SCHEDULES, Layouts
from ridgeline.models.spec import ModelSpec
from ridgeline.records.layout import Precision, Schedule

_ACTIVATION_BYTES = 2
"""Bytes of one element of a layer's input in mixed precision."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """What is to be laid out, and how wide to look."""

    model: ModelSpec
    num_devices: int
    widest_tensor: int
    """The most devices that tensor parallelism may span: those of one fast domain, as a rule."""
    global_batch: int
    seq: int
    capacity_bytes: float
    """Memory of one device."""
    precisions: tuple[Precision, ...] = ("bf16",)
    thorough: bool = True
    """Whether everything is tried, or only what is usual: shard groups of one fast domain or of
    all data ranks, micro-batches that are powers of two, experts that are not split."""
    domain_size: int = 8
    data_ranks_alone: bool = False
    """Whether neither layers nor matrices are split between devices."""
    schedules: tuple[Schedule, ...] = ("1f1b", "interleaved")
    """Schedules of a pipeline. `zero-bubble` is not tried by default: as ZB-H1 needs it (Qi et al.
    2024), with one chunk per rank, none of the frameworks that we write arguments for has it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Skeleton:
    """One way to factor the devices."""

    dp: int
    tp: int
    pp: int
    cp: int


def divisors(number: int) -> list[int]:
    """The divisors of a number in ascending order.

    >>> divisors(12)
    [1, 2, 3, 4, 6, 12]
    """
    small = [d for d in range(1, int(number**0.5) + 1) if number % d == 0]
    return small + [number // d for d in reversed(small) if d * d != number]


def skeletons(space: Space) -> list[Skeleton]:
    """Every valid (dp, tp, pp, cp)."""
    found = []
    for tp in _tensor_sizes(space):
        for pp in divisors(space.num_devices // tp):
            if space.data_ranks_alone and tp * pp > 1:
                continue
            if not _fills_every_stage(_layers(space.model), pp):
                continue
            for cp in divisors(space.num_devices // (tp * pp)):
                dp = space.num_devices // (tp * pp * cp)
                if (cp == 1 or space.seq % (2 * cp) == 0) and space.global_batch % dp == 0:
                    found.append(Skeleton(dp=dp, tp=tp, pp=pp, cp=cp))
    return found


def chunks(space: Space, size: int = 16_384) -> Iterator[Layouts]:
    """Every valid layout, `size` of them at a time (fewer in the last chunk)."""
    waiting: list[dict[str, Ints]] = []
    held = 0
    for skeleton in skeletons(space):
        for part in _expand(space, skeleton, size):
            waiting.append(part)
            held += len(part["dp"])
            if held >= size:
                whole = _concatenate(waiting)
                start = 0
                while held - start >= size:
                    yield _layouts({k: v[start : start + size] for k, v in whole.items()})
                    start += size
                waiting = [{k: v[start:] for k, v in whole.items()}]
                held -= start
    if held:
        yield _layouts(_concatenate(waiting))


def _layers(model: ModelSpec) -> int:
    return model.layers + model.decoder_layers


def _tensor_sizes(space: Space) -> list[int]:
    model = space.model
    widths = [model.ffn]
    if model.experts is not None:
        dense = [model.ffn] if model.experts.dense_layers or model.experts.every > 1 else []
        shared = [model.experts.shared_ffn] if model.experts.shared_ffn else []
        widths = dense + shared
    kv_heads = model.heads if model.latent else model.kv_heads
    return [
        tp
        for tp in divisors(space.num_devices)
        if tp <= space.widest_tensor
        and model.heads % tp == 0
        and (kv_heads % tp == 0 or tp % kv_heads == 0)
        and all(width % tp == 0 for width in widths)
        and (model.state is None or model.state.heads % tp == 0)
    ]


def _fills_every_stage(layers: int, pp: int) -> bool:
    """Whether stages of ⌈layers / pp⌉ layers leave something for the last one."""
    return pp == 1 or -(-layers // pp) * (pp - 1) < layers


def _sequence_parallel(space: Space, skeleton: Skeleton) -> bool:
    return skeleton.tp > 1 and (space.seq // skeleton.cp) % skeleton.tp == 0


def _shardings(space: Space, skeleton: Skeleton) -> Ints:
    """Choices of sharding, with the columns zero and fsdp."""
    rows = [(0, 1)]
    ranks = skeleton.dp * skeleton.cp
    usual = (ranks, max(space.domain_size // skeleton.tp, 1))
    for group in divisors(ranks)[1:]:
        if not space.thorough and group not in usual:
            continue
        rows += [(zero, group) for zero in (1, 2, 3)]
    return np.array(rows, dtype=np.int64)


def _experts(space: Space, skeleton: Skeleton) -> Ints:
    """Choices for experts, with the columns ep and etp."""
    experts = space.model.experts
    if experts is None:
        return np.array([(1, 1)], dtype=np.int64)
    ranks = skeleton.dp * skeleton.cp * skeleton.tp
    rows = [
        (ep, etp)
        for etp in sorted({1, skeleton.tp} if space.thorough else {1})
        if experts.ffn % etp == 0
        for ep in divisors(experts.num_experts)
        if ranks % (ep * etp) == 0
    ]
    return np.array(rows, dtype=np.int64)


def _passes(space: Space, skeleton: Skeleton) -> Ints:
    """Choices of the passes, with the columns micro_batch, vpp and schedule."""
    layers = _layers(space.model)
    per_rank = space.global_batch // skeleton.dp
    share = skeleton.cp * (skeleton.tp if _sequence_parallel(space, skeleton) else 1)
    input_bytes = _ACTIVATION_BYTES * space.model.hidden * space.seq / share
    stage_layers = -(-layers // skeleton.pp)
    plain = [name for name in space.schedules if name != "interleaved"]
    if skeleton.pp == 1:
        plain = ["1f1b"]
    rows = []
    for micro_batch in divisors(per_rank):
        if micro_batch > 1 and micro_batch * input_bytes * stage_layers > space.capacity_bytes:
            break
        if not space.thorough and micro_batch & (micro_batch - 1):
            continue
        rows += [(micro_batch, 1, SCHEDULES.index(name)) for name in plain]
        if skeleton.pp > 1 and layers % skeleton.pp == 0 and "interleaved" in space.schedules:
            if (per_rank // micro_batch) % skeleton.pp:
                continue
            interleaved = SCHEDULES.index("interleaved")
            rows += [(micro_batch, v, interleaved) for v in divisors(layers // skeleton.pp)[1:]]
    return np.array(rows, dtype=np.int64)


def _axes(space: Space, skeleton: Skeleton) -> list[Ints]:
    """Independent choices, each a table with one row per option."""
    precisions = [PRECISIONS.index(name) for name in space.precisions]
    return [
        _passes(space, skeleton),
        _shardings(space, skeleton),
        _experts(space, skeleton),
        np.arange(len(RECOMPUTES), dtype=np.int64)[:, None],
        np.array(precisions, dtype=np.int64)[:, None],
    ]


_COLUMNS = (
    ("micro_batch", "vpp", "schedule"),
    ("zero", "fsdp"),
    ("ep", "etp"),
    ("recompute",),
    ("precision",),
)
"""Column names of the tables of `_axes`, in its order."""


def _expand(space: Space, skeleton: Skeleton, size: int) -> Iterator[dict[str, Ints]]:
    """The product of a skeleton's choices, at most `size` rows at a time."""
    axes = _axes(space, skeleton)
    shape = tuple(len(axis) for axis in axes)
    total = int(np.prod(shape))
    fixed = {
        "dp": skeleton.dp,
        "tp": skeleton.tp,
        "pp": skeleton.pp,
        "cp": skeleton.cp,
        "sp": int(_sequence_parallel(space, skeleton)),
        "global_batch": space.global_batch,
        "offload": 0,
        "compiled": 1,
    }
    for start in range(0, total, size):
        rows = np.arange(start, min(start + size, total))
        part = {name: np.full(len(rows), value, dtype=np.int64) for name, value in fixed.items()}
        for axis, names, picked in zip(axes, _COLUMNS, np.unravel_index(rows, shape), strict=True):
            part |= {name: axis[picked, place] for place, name in enumerate(names)}
        several = part["micro_batch"] * skeleton.dp < space.global_batch
        wanted = ~(several & (part["zero"] == 2))
        yield {name: column[wanted] for name, column in part.items()}


def _concatenate(parts: list[dict[str, Ints]]) -> dict[str, Ints]:
    if len(parts) == 1:
        return parts[0]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _layouts(part: dict[str, Ints]) -> Layouts:
    columns: dict[str, Any] = dict(part)
    for name in ("sp", "compiled"):
        columns[name] = part[name].astype(np.bool_)
    return Layouts(**columns)
