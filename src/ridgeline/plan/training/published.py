"""Read a table of published training runs: what ran, on what, and what was measured.

The columns are listed in `COLUMNS`; empty cells are filled by one rule, the choice that a
competent user would make, and never by looking at the measured value:

- dp: what is left of the devices. Micro-batch: the fastest that fits in memory. Recomputation:
  the cheapest that fits (none, then the attention core, then all). Sharding: replicated where it
  fits, then ZeRO-1, then fully sharded. Global batch: one micro-batch per rank, four per stage
  of a pipeline. A bare `A100` is the 80 GB SXM part. Precision: the device's 16-bit dtype.
- Network, node size and power are those that the note states, else typical of the device.
- The class of software comes from words in source and note (`stacks.toml`).
- Adapters: those of the columns `adapter` (lora, qlora), `adapter_rank`, `adapter_targets` (names
  with blanks between) and `adapter_dropout`; without them the weights are trained.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import get_args

import msgspec

from ridgeline.cost.training.workload import Stack, Workload
from ridgeline.errors import InputError
from ridgeline.hardware.cluster import Cluster, parse_cluster
from ridgeline.hardware.facts import Device
from ridgeline.models.spec import ModelSpec
from ridgeline.models.table import spec_from_table
from ridgeline.plan.notes import TrainingNote, read_training_note
from ridgeline.plan.table_cells import Unreadable, positive, read_cells, whole
from ridgeline.plan.training.published_adapters import adapters_of_row
from ridgeline.plan.training.stacks import stack, stack_of
from ridgeline.records.layout import Layout, Precision, Recompute

COLUMNS = (
    "source",
    "model",
    "layers",
    "hidden",
    "heads",
    "vocab",
    "seq",
    "gpu",
    "n_gpus",
    "metric_name",
    "metric_value",
)
"""Columns without which a table cannot be read; the others may be absent, as cells may be empty."""
TIMES = {"step_time_s": 1.0, "step_time_ms": 1e-3}
"""Metric of a step's time → its unit in seconds."""
METRICS = (
    *TIMES, "tokens_per_s_per_gpu", "tokens_per_s_total", "samples_per_s_per_gpu",
    "samples_per_s_total", "tflops_per_gpu", "mfu",
)  # fmt: skip
PACKED_DOCUMENT = 512
"""Tokens of a fine-tuning example; packing puts many of them into one sequence."""
RECOMPUTE_WORDS = {
    **dict.fromkeys(("yes", "true", "on", "1", "all", "block", "uniform", "full-layer"), "full"),
    **dict.fromkeys(("no", "false", "off", "0"), "none"),
    **dict.fromkeys(("attention", "core_attn", "core-attention", "attn"), "selective"),
}
BY_OPERATOR = "selective-op"
"""How torchtitan's users name `Stack.selective_operators`."""
SHARDING_WORDS = {
    **dict.fromkeys(("none", "ddp", "dp", "zero0", "noshard"), 0),
    **dict.fromkeys(("zero1", "distopt", "distributedoptimizer"), 1),
    **dict.fromkeys(("zero2", "shardgradop"), 2),
    **dict.fromkeys(("zero3", "fsdp", "fsdp1", "fsdp2", "hsdp", "fullshard", "hybridshard"), 3),
}
"""Word of a `sharding` cell, without blanks and hyphens → ZeRO stage."""
PRECISION_WORDS = {
    **dict.fromkeys(("bfloat16", "amp_bf16", "bf16-mixed", "mixed", "amp"), "bf16"),
    **dict.fromkeys(("float16", "half", "amp_fp16", "fp16-mixed"), "fp16"),
    **dict.fromkeys(("float8", "fp8-hybrid", "amp_fp8", "fp8-mixed"), "fp8"),
    **dict.fromkeys(("float32", "tf32"), "fp32"),
    "fp4": "nvfp4",
}
ACCUMULATED_GRADIENT_BYTES = 6.0
"""A gradient in 16 bits beside the fp32 sum that it is added to."""
LEAST_GROUP = 8
"""Ranks of the smallest group that is tried where hybrid sharding states none: a node's."""
NEAR_BYTES_PER_SECOND = 2e11
"""From which on a host is near: NVLink-C2C carries 450 GB/s each way, a PCIe bus 64."""
POWER_LIMITED_SHARE = 0.7
"""The share of its printed power that a part has when a source says that it is limited but not how
far."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One way to fill the empty cells."""

    layout: Layout
    recompute_share: float = 1.0
    """The share of the layers that recompute, when recomputation is full."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedTraining:
    """One row that can be estimated."""

    row: int
    """Line of the table, the first row after the header being 1."""
    cells: Mapping[str, str]
    model: ModelSpec
    cluster: Cluster
    workload: Workload
    candidates: list[Candidate]
    """What the stated cells allow; one when everything is stated."""
    note: TrainingNote

    @property
    def source(self) -> str:
        """The name of whoever published it."""
        return self.cells["source"]


def read_table(path: Path) -> list[PublishedTraining | Unreadable]:
    """Every row of a table, in order."""
    return [read_row(number, row) for number, row in enumerate(read_cells(path, COLUMNS), 1)]


def read_row(number: int, cells: Mapping[str, str]) -> PublishedTraining | Unreadable:
    """The run of one row, or why it cannot be estimated."""
    blank = [name for name in ("seq", "gpu", "n_gpus") if not cells[name]]
    if blank:
        reason = f"{', '.join(blank)} is blank; fill it in"
        return Unreadable(row=number, cells=cells, status="insufficient", reason=reason)
    try:
        model = spec_from_table(cells)
    except InputError as error:
        return Unreadable(row=number, cells=cells, status="insufficient", reason=str(error))
    origin = f"{cells['source']} {cells.get('source_path', '')}"
    note = read_training_note(cells.get("note", ""), origin)
    try:
        _check_numbers(cells)
        cluster = cluster_of_row(cells, note, whole(cells, "n_gpus") or 1)
        software = stack_of_row(cells, note)
        candidates = layouts_of_row(cells, note, model, software)
        adapters = adapters_of_row(cells, note, software, _precision(cells))
    except InputError as error:
        return Unreadable(row=number, cells=cells, status="refused", reason=str(error))
    workload = Workload(
        seq=whole(cells, "seq") or 1,
        stack=software,
        adapters=adapters,
        document=PACKED_DOCUMENT if note.fine_tuned else 0,
    )
    return PublishedTraining(
        row=number,
        cells=cells,
        model=model,
        cluster=cluster,
        workload=workload,
        candidates=candidates,
        note=note,
    )


def _check_numbers(cells: Mapping[str, str]) -> None:
    """Refuse what was typed but cannot be read: a guess would be worse than no answer."""
    metric, value = cells["metric_name"], cells["metric_value"]
    if value and metric not in METRICS:
        raise InputError(f"metric_name {metric!r}: use {', '.join(METRICS)}")
    for name in ("seq", "layers", "hidden", "vocab"):
        whole(cells, name)
    for name in ("metric_value", "peak_mem_gb"):
        text = cells.get(name, "")
        if text and positive(text) is None:
            raise InputError(f"{name} is {text!r}; it must be a number above 0")


def cluster_of_row(cells: Mapping[str, str], note: TrainingNote, count: int) -> Cluster:
    """The typical cluster of the device, with the network and node size that the note states."""
    typical = parse_cluster(f"{count}x{cells['gpu']}")
    size = note.node_size or typical.domain_size
    gigabits = note.network_gigabits
    cluster = parse_cluster(
        f"{count}x{cells['gpu']}",
        domain_size=note.node_size,
        network_bytes_per_second=None if gigabits is None else gigabits * 1e9 / 8 / size,
    )
    return replace(cluster, device=_limited(cluster.device, note))


def _limited(device: Device, note: TrainingNote) -> Device:
    """The part at the power that the note states: clocks go with the square root of power."""
    printed = device.power.watts if device.power else 0.0
    share = note.watts / printed if note.watts and printed else 1.0
    if note.watts is None and note.power_limited:
        share = POWER_LIMITED_SHARE
    if not 0.3 < share < 1.0:
        return device
    peaks = device.peak_flops_per_second
    scaled = {name: rate * math.sqrt(share) for name, rate in device.peaks.items()}
    return msgspec.structs.replace(
        device, peak_flops_per_second=msgspec.structs.replace(peaks, **scaled)
    )


def keeps_on_host(cells: Mapping[str, str], software: Stack) -> bool:
    """Whether a recipe of this software lets activations wait in the host's memory.

    Those of fully sharded runs do where the host is as near as another device.
    """
    if not software.offloads_if_near or cells.get("sharding", "").lower() != "fsdp":
        return False
    return parse_cluster(f"1x{cells['gpu']}").host_bytes_per_second >= NEAR_BYTES_PER_SECOND


def stack_of_row(cells: Mapping[str, str], note: TrainingNote) -> Stack:
    """The class of software, by words of the row (`stacks.toml` says what each class does)."""
    words = f"{cells['source']} {cells.get('source_path', '')} {cells.get('note', '')}".lower()
    found = stack_of(words.replace("megatron formula", "").replace("megatron flops formula", ""))
    unnamed = found is None or found.name == "megatron"
    if unnamed and (_precision(cells) == "fp16" or (found is None and "V100" in cells["gpu"])):
        found = stack("legacy")
    found = found or stack("torch")
    changes: dict[str, float | bool] = {}
    if note.pure_bf16:
        changes |= {"gradient_bytes": 2.0, "reduce_bytes": 2.0, "master_bytes": 0.0}
        changes |= {"optimizer_bytes": 2.0 if note.eight_bit else 4.0}
    if note.fp32_gradients:
        changes |= {"reduce_bytes": 4.0, "gradient_bytes": ACCUMULATED_GRADIENT_BYTES}
    if note.chunked_loss is not None:
        changes["chunked_logits"] = note.chunked_loss
    if found.hook_seconds and _stated_sharding(cells) != 3:
        changes["hook_seconds"] = 0.0
    if note.frees_gradients:
        changes["frees_gradients"] = True
    if note.offloads_activations or keeps_on_host(cells, found):
        changes["offloads_activations"] = True
    if "moe" in note.recompute_modules:
        changes["repeats_core"] = "core_attn" in note.recompute_modules
        changes["repeats_experts"] = True
    if "moe_act" in note.recompute_modules:
        changes["repeats_gates"] = True
    if "mla_up_proj" in note.recompute_modules:
        changes["repeats_latent"] = True
    if note.ragged:
        changes["ragged"] = True
    if note.flash_attention is not None:
        changes["fused_attention"] = note.flash_attention
    if note.hierarchical_dispatch:
        changes["hierarchical_dispatch"] = True
    if note.forced_balance:
        changes["forced_balance"] = True
    if cells.get("recompute", "").lower() == BY_OPERATOR:
        changes["selective_operators"] = True
    if note.captured:
        changes["captured"] = True
    if note.overlapped_experts:
        changes["overlap_experts"] = True
    return replace(found, **changes)  # type: ignore[arg-type]


def layouts_of_row(
    cells: Mapping[str, str], note: TrainingNote, model: ModelSpec, software: Stack
) -> list[Candidate]:
    """The layouts that the stated cells allow."""
    count = whole(cells, "n_gpus") or 1
    tp, pp, cp = (whole(cells, name) or 1 for name in ("tp", "pp", "cp"))
    dp = whole(cells, "dp") or max(count // (tp * pp * cp), 1)
    if dp * tp * pp * cp != count:
        raise InputError(f"dp {dp} x tp {tp} x pp {pp} x cp {cp} is not n_gpus {count}")
    ep = whole(cells, "ep") or 1
    found = []
    for micro, batch in _batches(cells, dp, pp, legacy=bool(software.legacy)):
        for recompute, share in _recomputes(cells, software):
            for zero in _sharding(cells, dp * cp, software, pp):
                layout = Layout(
                    dp=dp,
                    fsdp=1,
                    zero=zero,  # type: ignore[arg-type]
                    tp=tp,
                    sp=tp > 1 and _sequence_parallel(note, software),
                    pp=pp,
                    vpp=whole(cells, "vpp") or 1,
                    cp=cp,
                    ep=ep if model.experts else 1,
                    etp=1,
                    micro_batch=micro,
                    global_batch=batch,
                    recompute=recompute,
                    precision=_precision(cells),
                    compiled=cells.get("compile", "").lower() in ("on", "yes", "true", "1"),
                )
                for shards in _shards(cells, note, zero, dp * cp):
                    sharded = msgspec.structs.replace(layout, fsdp=shards)
                    found.append(Candidate(layout=sharded, recompute_share=share))
    return found


def _sequence_parallel(note: TrainingNote, software: Stack) -> bool:
    """Whether it is used: the note decides, else what the framework does of itself since 2023."""
    stated = note.sequence_parallel
    return stated if stated is not None else not software.legacy


def _batches(cells: Mapping[str, str], dp: int, pp: int, *, legacy: bool) -> list[tuple[int, int]]:
    micro, batch = whole(cells, "micro_batch"), whole(cells, "global_batch")
    if micro and batch:
        if batch % (micro * dp):
            # A source's odd batch (2043 over 9 ranks): the nearest that can be run.
            batch = max(round(batch / (micro * dp)), 1) * micro * dp
        return [(micro, batch)]
    if micro:
        return [(micro, micro * dp * (4 * pp if pp > 1 else 1))]
    if batch:
        per_rank = batch // dp
        if per_rank < 1 or batch % dp:
            raise InputError(f"global batch {batch} is no multiple of dp {dp}")
        if legacy and pp == 1:
            return [(per_rank, batch)]  # before gradients were accumulated over micro-batches
        return [(size, batch) for size in range(1, min(per_rank, 64) + 1) if per_rank % size == 0]
    return [(size, size * dp * (4 * pp if pp > 1 else 1)) for size in (1, 2, 4, 8, 16, 32)]


def _recomputes(cells: Mapping[str, str], software: Stack) -> list[tuple[Recompute, float]]:
    """Ways to recompute, each with the share of the layers that do where it is full."""
    stated = cells.get("recompute", "").lower()
    stated = RECOMPUTE_WORDS.get(stated, stated)
    partial: list[tuple[Recompute, float]] = [("full", share) for share in (0.25, 0.5, 0.75, 1.0)]
    if not stated and software.by_operator:
        return [("selective", 1.0)]
    if not stated:
        core: list[tuple[Recompute, float]] = []
        if not software.fused_attention:
            core = [("selective", 1.0)]
        return [("none", 1.0), *core, *partial]
    if stated == "partial":
        return partial[:3]
    if stated == "selective-layer":  # torchtitan's way to recompute every second layer
        return [("full", 0.5)]
    if stated == BY_OPERATOR:
        return [("selective", 1.0)]
    if stated in get_args(Recompute):
        return [(stated, 1.0)]  # type: ignore[list-item]
    raise InputError(f"recompute {stated!r}: use none, selective, partial or full")


def _sharding(cells: Mapping[str, str], ranks: int, software: Stack, stages: int) -> list[int]:
    """ZeRO stages that a row allows.

    Outside Megatron's relatives FSDP under a pipeline is stage 1: it never gives weights and
    gradients back between micro-batches (`reshard_after_forward` of torchtitan, off where there are
    stages).
    """
    unsharded = stages > 1 and not software.modules
    stated = _stated_sharding(cells)
    if stated is None:
        if ranks == 1:
            return [0]
        return [1, 3] if software.shards_optimizer else [0, 1, 3]
    stage = stated if ranks > 1 else 0
    return [1 if unsharded and stage == 3 else stage]


def _stated_sharding(cells: Mapping[str, str]) -> int | None:
    """The ZeRO stage of the cell; None where it is empty."""
    stated = re.sub(r"[\s_-]", "", cells.get("sharding", "").lower())
    if stated and stated not in SHARDING_WORDS:
        raise InputError(f"sharding {stated!r}: use {', '.join(SHARDING_WORDS)}")
    return SHARDING_WORDS[stated] if stated else None


def _shards(cells: Mapping[str, str], note: TrainingNote, zero: int, ranks: int) -> list[int]:
    """Ranks that share one copy; of hybrid sharding, whose groups no column states, whole nodes."""
    if zero == 0:
        return [1]
    if note.zero1_ranks and ranks % note.zero1_ranks == 0:
        return [note.zero1_ranks]
    hybrid = note.hybrid_sharding or re.search(r"hsdp|hybrid", cells.get("sharding", "").lower())
    if zero == 3 and hybrid and ranks > LEAST_GROUP:
        doubled = (LEAST_GROUP << power for power in range(ranks.bit_length()))
        return [size for size in doubled if size < ranks and ranks % size == 0] + [ranks]
    return [ranks]


def _precision(cells: Mapping[str, str]) -> Precision:
    stated = cells.get("precision", "").lower() or "bf16"
    stated = PRECISION_WORDS.get(stated, stated)
    if stated in get_args(Precision):
        return stated  # type: ignore[return-value]
    raise InputError(f"precision {stated!r}: use one of {', '.join(get_args(Precision))}")
