"""Everything an engine is made of, built in the order in which memory is taken."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ridgeline.batching.blocks import BlockCache
from ridgeline.batching.limits import Limits
from ridgeline.batching.scheduler import Scheduler
from ridgeline.hardware.machine import this_machine
from ridgeline.serve.adapters.adapters import Adapters
from ridgeline.serve.adapters.examined import examined
from ridgeline.serve.cache import KvPool
from ridgeline.serve.config import EngineConfig
from ridgeline.serve.engine.memory import kv_room, memory_ledger, peak_bytes
from ridgeline.serve.engine.runner import Runner, one_prompt
from ridgeline.serve.engine.speculating import Speculating, build_speculating, draft_model_of
from ridgeline.serve.messages import MemoryRow, Ready
from ridgeline.serve.model.batch import StepInputs
from ridgeline.serve.model.loaded import LoadedModel, load
from ridgeline.serve.weights import kernels_of

MEASURED_TOKENS = 256
"""Activations grow in proportion to the tokens of a step, so a smaller step tells."""
DRAFT = "draft weights"


@dataclass(frozen=True, slots=True)
class Parts:
    """What one engine is made of."""

    loaded: LoadedModel
    pool: KvPool
    cache: BlockCache
    limits: Limits
    scheduler: Scheduler
    adapters: Adapters
    runner: Runner
    speculating: Speculating | None
    inputs: StepInputs
    ready: Ready


def build_parts(config: EngineConfig) -> Parts:
    """Load the model, then give the KV cache what is left.

    Raises:
        InputError: The model cannot be served as configured.
    """
    torch.set_num_threads(config.threads or this_machine(gpus=[]).cpu.num_usable_cores)
    loaded = load(config)
    adapters = Adapters(loaded.model, config.max_adapters, loaded.dtype)
    for name, path in config.adapters.items():
        adapters.load(name, examined(path))
    small = draft_model_of(config)
    rows = _rows(config, loaded, adapters, small)
    space = kv_room(config, loaded, rows, small)
    pool = KvPool(
        loaded.kv_shapes,
        num_blocks=space.num_blocks,
        block_size=config.block_size,
        form=loaded.kv_form,
        device=loaded.device,
    )
    drafts = build_speculating(config, loaded, small, space.num_blocks)
    if drafts is not None:
        rows = [*_without_draft(rows), *drafts.drafter.memory()]
    cache = BlockCache(
        space.num_blocks,
        config.block_size,
        prefix=config.prefix_cache,
        layout=config.kv_layout,
        max_length=space.max_length,
    )
    limits = Limits(
        max_tokens_per_step=config.max_tokens_per_step,
        max_sequences=config.max_sequences,
        max_length=space.max_length,
        max_waiting=config.max_waiting,
        batching=config.batching,
        order=config.order,
        chunked_prefill=config.chunked_prefill,
    )
    runner = Runner(config, loaded, pool, adapters, space.max_length)
    if runner.fixed_bytes:
        rows = [*rows, MemoryRow(what="graphs", bytes=runner.fixed_bytes)]
    kv = MemoryRow(
        what="kv blocks",
        bytes=pool.bytes,
        note=f"{space.num_blocks} × {config.block_size} tokens; {pool.form.name}",
    )
    ready = Ready(
        model=config.model,
        ledger=memory_ledger(config, loaded, rows, kv, space),
        max_length=space.max_length,
        vocab=loaded.vocab,
        adapters=adapters.names,
        kernels=kernels_of(loaded.model),
    )
    return Parts(
        loaded=loaded,
        pool=pool,
        cache=cache,
        limits=limits,
        scheduler=Scheduler(limits, cache),
        adapters=adapters,
        runner=runner,
        speculating=drafts,
        inputs=StepInputs(
            max_sequences=config.max_sequences,
            block_size=config.block_size,
            device=loaded.device,
        ),
        ready=ready,
    )


def _rows(
    config: EngineConfig, loaded: LoadedModel, adapters: Adapters, small: LoadedModel | None
) -> list[MemoryRow]:
    """All of the ledger but the KV blocks."""
    draft = [] if small is None else [MemoryRow(what=DRAFT, bytes=small.weight_bytes())]
    return [*loaded.weight_rows, *adapters.memory(), *draft, _activations(config, loaded)]


def _without_draft(rows: list[MemoryRow]) -> list[MemoryRow]:
    """Once the drafter says itself what it holds."""
    return [row for row in rows if row.what != DRAFT]


def _activations(config: EngineConfig, loaded: LoadedModel) -> MemoryRow:
    """What the largest step adds: every token of it, and a row of logits per sequence."""
    tokens = config.max_tokens_per_step
    measured = min(tokens, MEASURED_TOKENS)
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
        peak = peak_bytes(lambda: loaded.forward(batch, pool.layers), loaded.device)
    logits = config.max_sequences * loaded.vocab * (4 + loaded.dtype.itemsize)
    return MemoryRow(
        what="activations",
        bytes=peak * tokens // measured + logits,
        note=f"of {tokens} tokens, measured at {measured}; {config.max_sequences} rows of logits",
    )
