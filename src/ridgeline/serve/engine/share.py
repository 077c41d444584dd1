"""What every rank of a model has: its share of the weights, of the cache, and what computes them.

An engine of one process has one share, which is the whole. Of several, each builds its share with
this module, in the same order, because ranks meet in collectives while they do.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from msgspec.structs import replace as replace_fields

from ridgeline.errors import InputError
from ridgeline.hardware.machine import this_machine
from ridgeline.measure.calls.memory import resident_bytes
from ridgeline.serve.adapters.adapters import Adapters
from ridgeline.serve.adapters.examined import examined
from ridgeline.serve.cache import KvPool
from ridgeline.serve.config import EngineConfig
from ridgeline.serve.engine.memory import KvRoom, kv_room, peak_bytes
from ridgeline.serve.engine.runner import Runner, one_prompt
from ridgeline.serve.engine.speculating import draft_model_of, eagle_head_of
from ridgeline.serve.messages import MemoryRow
from ridgeline.serve.model.load import device_of, load
from ridgeline.serve.model.loaded import LoadedModel
from ridgeline.serve.speculation.eagle import EagleHead
from ridgeline.serve.tensor_parallel.group import RankGroup
from ridgeline.serve.vision.features import KEPT_BYTES

MEASURED_TOKENS = 256
"""Activations grow in proportion to the tokens of a step, so a smaller step tells."""
DRAFT = "draft weights"


@dataclass(frozen=True, slots=True)
class RankShare:
    """One rank's part of an engine."""

    loaded: LoadedModel
    adapters: Adapters
    small: LoadedModel | None
    """A draft model, which the first rank has to itself."""
    head: EagleHead | None
    """An EAGLE head, where one is to draft."""
    rows: list[MemoryRow]
    """All of the ledger but the KV blocks."""
    room: KvRoom
    pool: KvPool
    runner: Runner


def build_share(config: EngineConfig, *, group: RankGroup | None) -> RankShare:
    """Load the share, then give its KV cache what is left.

    Raises:
        InputError: The model cannot be served as configured.
    """
    loaded = load(config, group)
    if loaded.recurrent is not None:
        _check_states(config)
    adapters = Adapters(loaded.model, config.max_adapters, loaded.dtype)
    for name, path in config.adapters.items():
        adapters.load(name, examined(path))
    small = draft_model_of(config) if group is None or not group.rank else None
    head = eagle_head_of(config, loaded)
    rows = _rows(config, loaded, adapters, small, group)
    room = kv_room(config, loaded, rows, small)
    if loaded.recurrent is not None:
        loaded.recurrent.kept.reserve(room.max_sequences)
    if group is not None:
        room = _agreed(room, group, config)
    pool = KvPool(
        loaded.kv_shapes,
        num_blocks=room.num_blocks,
        block_size=config.block_size,
        form=loaded.kv_form,
        device=loaded.device,
    )
    runner = Runner(config, loaded, pool, adapters, room.max_length)
    if runner.fixed_bytes:
        rows = [*rows, MemoryRow(what="graphs", bytes=runner.fixed_bytes)]
    if group is not None:
        group.reset()
    return RankShare(loaded, adapters, small, head, rows, room, pool, runner)


def _check_states(config: EngineConfig) -> None:
    """Raise `InputError` for what does not go together with layers that keep states."""
    why = f"{config.model} has layers that keep a state of each sequence"
    if config.speculation is not None:
        raise InputError(
            f"--speculative: {why}, which cannot be taken back where a guess was wrong;"
            " leave it out"
        )
    if config.compiled:
        raise InputError(f"--compiled: {why}, which it does not compute; leave it out")


def set_threads(config: EngineConfig) -> None:
    """Give torch the threads that were asked for, or this rank's share of the cores."""
    cores = this_machine(gpus=[]).cpu.num_usable_cores
    torch.set_num_threads(config.threads or max(1, cores // config.ranks))


def rank_device(config: EngineConfig, rank: int) -> torch.device:
    """Where a rank of several computes.

    Raises:
        InputError: There are fewer GPUs than ranks.
    """
    device = device_of(config)
    if device.type != "cuda":
        return device
    count = torch.cuda.device_count()
    if count < config.ranks:
        raise InputError(f"{config.cut}: PyTorch sees {count} GPUs here; give at most as many")
    device = torch.device("cuda", rank)
    torch.cuda.set_device(device)
    return device


def _agreed(room: KvRoom, group: RankGroup, config: EngineConfig) -> KvRoom:
    """What the rank with the least room has: all keep the same blocks."""
    num_blocks = group.least(room.num_blocks)
    longest = room.max_length
    if config.kept is None:
        longest = min(longest, num_blocks * config.block_size)
    return replace(room, num_blocks=num_blocks, max_length=group.least(longest))


def _rows(
    config: EngineConfig,
    loaded: LoadedModel,
    adapters: Adapters,
    small: LoadedModel | None,
    group: RankGroup | None,
) -> list[MemoryRow]:
    draft = [] if small is None else [MemoryRow(what=DRAFT, bytes=small.weight_bytes())]
    tensors = [*loaded.weight_rows, *adapters.memory(), *draft]
    rows = [*tensors, *_program(loaded, tensors), _activations(config, loaded, group)]
    if loaded.tower is not None:
        kept = "of images that may come again; those of open requests besides"
        rows.append(MemoryRow(what="image features", bytes=KEPT_BYTES, note=kept))
    if loaded.kept is not None and loaded.proven is not None:
        loaded.kept.keep(loaded.proven)
    return rows


def _program(loaded: LoadedModel, tensors: list[MemoryRow]) -> list[MemoryRow]:
    """What this process holds beside the tensors that are listed, on a CPU."""
    held = resident_bytes()
    if loaded.device.type != "cpu" or not held:
        return []
    beside = max(0, held - sum(row.bytes for row in tensors))
    note = "Python, libraries and what loading has left, resident"
    return [MemoryRow(what="program", bytes=beside, note=note)]


def _activations(config: EngineConfig, loaded: LoadedModel, group: RankGroup | None) -> MemoryRow:
    """What the largest step adds: every token of it, and a row of logits per sequence."""
    tokens = config.max_tokens_per_step
    measured = min(tokens, MEASURED_TOKENS)
    proven = None if config.adapters else loaded.proven
    known = {} if proven is None else proven.activation_bytes
    if group is not None and not group.least(int(measured in known)):
        known = {}  # some rank has to measure it, which takes all
    peak = known.get(measured) or _measured_peak(config, loaded, measured)
    if proven is not None:
        loaded.proven = replace_fields(proven, activation_bytes={**known, measured: peak})
    logits = config.max_sequences * loaded.vocab * (4 + loaded.dtype.itemsize)
    return MemoryRow(
        what="activations",
        bytes=peak * tokens // measured + logits,
        note=f"of {tokens} tokens, measured at {measured}; {config.max_sequences} rows of logits",
    )


def _measured_peak(config: EngineConfig, loaded: LoadedModel, measured: int) -> int:
    """What a prompt of so many tokens adds at its peak."""
    blocks = -(-measured // config.block_size)
    pool = KvPool(
        loaded.kv_shapes,
        num_blocks=blocks,
        block_size=config.block_size,
        form=loaded.kv_form,
        device=loaded.device,
    )
    batch = one_prompt(measured, blocks, loaded)
    with torch.inference_mode():
        loaded.forward(batch, pool.layers)  # whatever is made once and kept
        return peak_bytes(lambda: loaded.forward(batch, pool.layers), loaded.device)
