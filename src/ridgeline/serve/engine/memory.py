"""Where the memory goes when an engine starts, and how many KV blocks the rest makes.

    KV bytes = share · device memory − weights − activations − everything else

The rows are what is allocated, not a forecast: weights are the storages that the modules hold, KV
the pool's tensors. Activations are what the largest step adds at its peak, measured.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ridgeline import quantity
from ridgeline.errors import InputError
from ridgeline.hardware.machine import this_machine
from ridgeline.serve.config import EngineConfig
from ridgeline.serve.messages import MemoryLedger, MemoryRow
from ridgeline.serve.model.loaded import LoadedModel

LARGEST_CPU_KV_BYTES = 4 * 2**30
"""The default's bound; a CPU's memory is shared with everything else on the machine."""

LENGTH_OF_STATES = 16384
"""The longest sequence where all layers keep states and the model names no end: longer ones take
no more memory, but for the numbers of their blocks."""


@dataclass(frozen=True, slots=True)
class KvRoom:
    """What the KV cache may be."""

    num_blocks: int
    max_length: int
    limit_bytes: int
    max_sequences: int
    """The most that run at once; fewer than asked for where each has states of its own."""
    state_bytes: int = 0
    """The states of so many."""


def device_bytes(device: torch.device) -> int:
    """Memory of the device, or what the machine's control group grants of it."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    machine = this_machine(gpus=[])
    return machine.memory_limit_bytes or machine.memory_bytes


def kv_room(
    config: EngineConfig,
    loaded: LoadedModel,
    rows: Sequence[MemoryRow],
    small: LoadedModel | None = None,
) -> KvRoom:
    """Blocks that fit beside `rows`, and the longest sequence that they hold.

    Args:
        config: As asked.
        loaded: The model.
        rows: Everything else that is allocated.
        small: A draft model, which gets as many blocks of its own.

    Raises:
        InputError: It does not fit; the line says which flag to change and to what.
    """
    limit = int(device_bytes(loaded.device) * config.memory_share)
    if loaded.device.type == "cpu":
        limit //= config.ranks  # all ranks share one machine's memory
    per_token = loaded.kv_form.bytes_per_token(loaded.kv_shapes)
    block_bytes = per_token * config.block_size
    left = limit - sum(row.bytes for row in rows)
    if small is not None:
        drafted = small.kv_form.bytes_per_token(small.kv_shapes)
        left = left * per_token // (per_token + drafted)
    if left < block_bytes:
        raise InputError(_nothing_left(config, rows, limit))
    wanted = None if config.kv_bytes is None else config.kv_bytes // config.ranks
    if wanted is not None and wanted > left:
        raise InputError(
            f"--kv-bytes {config.kv_bytes}: beside {_listed(rows)} only {left} bytes are left of "
            f"{limit} ({config.memory_share:.0%} of the memory{_a_rank(config)}); give "
            f"--kv-bytes {left * config.ranks} or less"
        )
    if wanted is None:
        largest = left if loaded.device.type == "cuda" else LARGEST_CPU_KV_BYTES // config.ranks
        wanted = min(left, largest)
    longest = config.max_length or loaded.max_length
    if longest is None:
        longest = wanted // per_token if per_token else LENGTH_OF_STATES
    if loaded.max_length is not None and longest > loaded.max_length:
        raise InputError(
            f"--max-length {longest}: the model's positions end at {loaded.max_length}; "
            f"give --max-length {loaded.max_length} or less"
        )
    of_one = -(-longest // config.block_size)
    if config.kept is not None:
        of_one = min(of_one, config.kept.most_blocks(config.block_size))
    num_sequences, state_bytes = _states(config, loaded, wanted)
    wanted -= state_bytes
    num_blocks = num_sequences * of_one
    if block_bytes:
        num_blocks = min(wanted // block_bytes, num_blocks)
    tokens = num_blocks * config.block_size
    if config.kept is not None:
        if num_blocks < config.kept.most_blocks(config.block_size):
            needed = config.kept.most_blocks(config.block_size) * block_bytes
            raise InputError(
                f"--kv-recent {config.kv_recent} keeps {needed} bytes of a sequence, and there are"
                f" {wanted}; give a smaller --kv-recent, or --kv-bytes {needed * config.ranks}"
            )
        return KvRoom(num_blocks, longest, limit, num_sequences, state_bytes)
    if num_blocks < 1 or (config.max_length is not None and tokens < longest):
        needed = -(-longest // config.block_size) * block_bytes
        raise InputError(_too_small(config, wanted, tokens, longest, needed))
    return KvRoom(num_blocks, min(longest, tokens), limit, num_sequences, state_bytes)


def _states(config: EngineConfig, loaded: LoadedModel, wanted: int) -> tuple[int, int]:
    """How many sequences may run at once, and the bytes of their states.

    Where layers keep states, these take half of the cache at most, and fewer sequences run.
    """
    if loaded.recurrent is None:
        return config.max_sequences, 0
    of_one = loaded.recurrent.bytes_per_sequence
    count = min(config.max_sequences, wanted // 2 // of_one)
    if not count:
        raise InputError(
            f"{wanted} bytes of cache have no room for the states of one sequence beside its keys"
            f" and values; give --kv-bytes {4 * of_one}"
        )
    return count, count * of_one


def memory_ledger(
    config: EngineConfig,
    loaded: LoadedModel,
    rows: Sequence[MemoryRow],
    kv: MemoryRow,
    room: KvRoom,
) -> MemoryLedger:
    """All rows with their sum, and what the KV cache can hold."""
    everything = (*rows, kv)
    tokens = room.num_blocks * config.block_size
    return MemoryLedger(
        rows=everything,
        total_bytes=sum(row.bytes for row in everything),
        limit_bytes=room.limit_bytes,
        num_blocks=room.num_blocks,
        block_size=config.block_size,
        bytes_per_token=loaded.kv_form.bytes_per_token(loaded.kv_shapes),
        tokens=tokens,
        max_length=room.max_length,
        ranks=config.ranks,
        largest_concurrency=tokens / min(room.max_length, _tokens_of_one(config)),
        layers=loaded.layer_path,
    )


def _tokens_of_one(config: EngineConfig) -> float:
    """The tokens that one sequence keeps at most, however long it is."""
    if config.kept is None:
        return float("inf")
    return config.kept.most_blocks(config.block_size) * config.block_size


def peak_bytes(work: Callable[[], object], device: torch.device) -> int:
    """Most that tensors made within `work` held at one time, by torch's allocators."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        work()
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_allocated(device) - before
    with _NewStorages() as new:
        work()
    return new.peak_bytes


class _NewStorages(TorchDispatchMode):
    """Follows the storages of all tensors that operators make within the block.

    torch's own profiler would tell the same, but prints lines of its own on stderr.
    """

    def __init__(self) -> None:
        super().__init__()
        self.peak_bytes = 0
        self._held_bytes = 0
        self._followed: set[int] = set()

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        before = {one.untyped_storage()._cdata for one in _tensors((args, kwargs))}
        out = func(*args, **(kwargs or {}))
        for tensor in _tensors(out):
            storage = tensor.untyped_storage()
            if storage._cdata not in before and storage._cdata not in self._followed:
                self._followed.add(storage._cdata)
                self._held_bytes += storage.nbytes()
                weakref.finalize(storage, self._freed, storage._cdata, storage.nbytes())
        self.peak_bytes = max(self.peak_bytes, self._held_bytes)
        return out

    def _freed(self, storage: int, num_bytes: int) -> None:
        self._followed.discard(storage)
        self._held_bytes -= num_bytes


def _tensors(values: Any) -> list[torch.Tensor]:
    return [one for one in tree_leaves(values) if isinstance(one, torch.Tensor)]


_MOST_SHARED = 0.5
"""A share of the memory from which on the advice is not to take more."""


def _nothing_left(config: EngineConfig, rows: Sequence[MemoryRow], limit: int) -> str:
    advice = ["--device with more memory"]
    if config.memory_share < _MOST_SHARED:
        advice.insert(0, "a larger --memory-share")
    if config.max_tokens_per_step > 256:
        advice.insert(0, f"--max-tokens-per-step {config.max_tokens_per_step // 4}")
    if config.weights == "model":
        advice.insert(0, "--weights int8 (about half the weights' bytes of bf16) or int4")
    room = f"{quantity.memory(limit)} ({config.memory_share:.0%} of the memory)"
    return (
        f"{Path(config.model).name}: {_listed(rows)} leave no room for the KV cache in {room}; "
        f"try {', or '.join(advice)}"
    )


def _a_rank(config: EngineConfig) -> str:
    return f", on each of {config.ranks} ranks" if config.ranks > 1 else ""


def _too_small(config: EngineConfig, wanted: int, tokens: int, longest: int, needed: int) -> str:
    shrink = " or --kv-dtype int8" if config.kv_dtype == "model" else ""
    return (
        f"{wanted * config.ranks} bytes of KV cache hold {tokens} tokens, a sequence may have "
        f"{longest}; give --kv-bytes {needed * config.ranks}, or --max-length"
        f" {max(tokens, 1)}{shrink}"
    )


def _listed(rows: Sequence[MemoryRow]) -> str:
    return ", ".join(f"{row.what} {quantity.memory(row.bytes)}" for row in rows if row.bytes)
