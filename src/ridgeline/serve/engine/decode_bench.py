"""How near decoding comes to the speed of memory, both measured in turns.

A decode step must read every weight once, so its floor is bytes over bandwidth. A machine's
bandwidth wavers by tens of percent within minutes, so a share means something only beside a read
measured in the same seconds: each round is some decode steps, then a plain read of a buffer too
large for any cache.

Several models (`decode_in_turns`) are all loaded and warmed up first; each round is some decode
steps of every model, in an order that turns around from round to round, then a read of memory, so
that round i of one model stands beside round i of another.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import msgspec
import torch
from torch import Tensor, nn

from ridgeline.errors import InputError
from ridgeline.hardware.machine import this_machine
from ridgeline.records.compression import Decoding
from ridgeline.records.served import DecodeBench
from ridgeline.serve.config import EngineConfig
from ridgeline.serve.engine.engine import ServingEngine
from ridgeline.serve.messages import Refused, Sampling, Submit
from ridgeline.serve.model.loaded import LoadedModel

WARM_UP_STEPS = 5
CACHE_MULTIPLE = 4
"""The buffer's size in last-level caches."""
SMALLEST_BUFFER_BYTES = 256 * 2**20
READS = 3
"""How often the buffer is read in a round; the fastest read counts."""


@dataclass(slots=True)
class DecodeSamples:
    """Samples of all rounds."""

    steps: list[float] = field(default_factory=list)
    outside: list[float] = field(default_factory=list)
    contexts: list[int] = field(default_factory=list)
    reads: list[float] = field(default_factory=list)


def bench_decode(
    config: EngineConfig,
    *,
    batch: int = 1,
    context: int = 64,
    rounds: int = 8,
    steps: int = 16,
    on_progress: Callable[[str], None] = lambda _: None,
) -> DecodeBench:
    """Decode `batch` sequences greedily, `rounds` times `steps` steps.

    Args:
        config: Of the engine; some fields are set to what the measurement needs.
        batch: Sequences.
        context: Tokens of each prompt.
        rounds: Each followed by reads of memory.
        steps: Of decoding in a round.
        on_progress: Told what is under way.

    Raises:
        InputError: The model cannot be served, or its positions or the cache end before the
            measurement does.
    """
    engine = start_decoding(config, batch, context, rounds * steps)
    on_progress(f"loaded {config.model}")
    buffer = read_buffer(engine.model.device)
    seen = DecodeSamples()
    for place in range(rounds):
        on_progress(f"round {place + 1} of {rounds}")
        decode(engine, steps, seen)
        seen.reads.append(read_rate(buffer))
    return _result(engine, config, batch, context, seen)


def start_decoding(config: EngineConfig, batch: int, context: int, steps: int) -> ServingEngine:
    """An engine with `batch` sequences past their prompts and warmed up, for `steps` more steps.

    Raises:
        InputError: The model cannot be served, or its positions or the cache end before.
    """
    new = steps + WARM_UP_STEPS + 1
    config = msgspec.structs.replace(
        config,
        max_sequences=batch,
        max_waiting=batch,
        max_tokens_per_step=max(config.max_tokens_per_step, batch),
    )
    engine = ServingEngine(config)
    prompts = torch.randint(engine.model.vocab, (batch, context)).tolist()
    sampling = Sampling(temperature=0.0, max_tokens=new, ignore_eos=True)
    for place, prompt in enumerate(prompts):
        engine.handle(Submit(id=str(place), prompt=tuple(prompt), sampling=sampling))
    for message in engine.take():
        if isinstance(message, Refused):
            raise InputError(
                f"{context} + {new} tokens: {message.message}; fewer --rounds or --steps"
            )
    while len(engine.scheduler.running) < batch or _computing_prompts(engine):
        engine.step()
    for _ in range(WARM_UP_STEPS - 1):
        engine.step()
    return engine


def read_bytes_per_step(loaded: LoadedModel, batch: int) -> int:
    """Weights that one decode step reads: all, but the embedding where it is not the head too.

    Of a layer's E experts those that `batch` tokens should reach, E · (1 − (1 − k/E)^batch).
    """
    reached = _reached_experts(loaded, batch)
    embedding = loaded.model.get_input_embeddings()  # type: ignore[operator]
    sizes: dict[int, float] = {}
    for name, module in loaded.model.named_modules():
        if module is embedding:
            continue
        share = reached if ".experts" in name else 1.0
        for tensor in _held(module):
            storage = tensor.untyped_storage()
            if storage.nbytes():
                sizes[storage.data_ptr()] = share * storage.nbytes()
    return round(sum(sizes.values()))


def decode(engine: ServingEngine, steps: int, seen: DecodeSamples) -> None:
    """Some steps of all its sequences, each timed."""
    for _ in range(steps):
        began = time.perf_counter()
        engine.step()
        seconds = time.perf_counter() - began
        engine.take()
        seen.steps.append(seconds)
        seen.outside.append(seconds - engine.forward_seconds)
        seen.contexts.append(sum(len(one.tokens) for one in engine.scheduler.running))


def read_rate(buffer: Tensor) -> float:
    """Bytes per second at which this machine reads a buffer now."""
    times = []
    for _ in range(READS):
        began = time.perf_counter()
        buffer.sum().item()
        times.append(time.perf_counter() - began)
    return buffer.nbytes / min(times)


def _result(
    engine: ServingEngine, config: EngineConfig, batch: int, context: int, seen: DecodeSamples
) -> DecodeBench:
    step = statistics.median(seen.steps)
    weights = read_bytes_per_step(engine.model, batch)
    kv = round(statistics.fmean(seen.contexts) * engine.ready.ledger.bytes_per_token)
    machine = statistics.median(seen.reads)
    rate = (weights + kv) / step
    return DecodeBench(
        model=config.model,
        dtype=str(engine.model.dtype).removeprefix("torch."),
        weights=config.weights,
        kernels=tuple(kernel.in_words() for kernel in engine.ready.kernels),
        device=engine.model.device.type,
        threads=torch.get_num_threads(),
        batch=batch,
        context=context,
        steps=len(seen.steps),
        step_seconds=step,
        step_samples=tuple(seen.steps),
        fastest_step_seconds=min(seen.steps),
        tokens_per_second=batch / step,
        outside_model_seconds=statistics.median(seen.outside),
        weight_bytes=weights,
        kv_bytes=kv,
        read_bytes_per_second=rate,
        machine_bytes_per_second=machine,
        share=rate / machine,
        rounds=len(seen.reads),
        machine_rounds=tuple(seen.reads),
    )


def _computing_prompts(engine: ServingEngine) -> bool:
    return any(len(one.tokens) - one.num_computed > 1 for one in engine.scheduler.running)


def read_buffer(device: torch.device) -> Tensor:
    """Too large for any cache, and written once, so that its pages are there."""
    caches = this_machine(gpus=[]).cpu.caches
    largest = max((cache.total_bytes for cache in caches), default=0)
    size = max(SMALLEST_BUFFER_BYTES, CACHE_MULTIPLE * largest)
    return torch.ones(size // 4, dtype=torch.float32, device=device)


def _held(module: nn.Module) -> list[Tensor]:
    kept = (*module._parameters.values(), *module._buffers.values())
    return [tensor for tensor in kept if tensor is not None]


def _reached_experts(loaded: LoadedModel, batch: int) -> float:
    """Share of the experts of a layer."""
    config = loaded.model.config.get_text_config()  # type: ignore[union-attr,operator]
    count = getattr(config, "num_local_experts", None) or getattr(config, "num_experts", None)
    chosen = getattr(config, "num_experts_per_tok", None)
    if not count or not chosen:
        return 1.0
    return float(1.0 - (1.0 - chosen / count) ** batch)


def decode_in_turns(
    configs: Sequence[EngineConfig],
    *,
    batch: int = 1,
    context: int = 64,
    rounds: int = 12,
    steps: int = 8,
    on_progress: Callable[[str], None] = lambda _: None,
) -> list[Decoding | str]:
    """Decode greedily with every model in turn.

    Args:
        configs: One per model; all stay in memory together.
        batch: Sequences of each.
        context: Tokens of each prompt.
        rounds: 6 or more, for an interval at 95 %.
        steps: Of decoding in a round, of each model.
        on_progress: Told what is under way.

    Returns:
        In the order of `configs`: figures, or why the model cannot be served.
    """
    engines: dict[int, ServingEngine] = {}
    found: list[Decoding | str] = []
    for place, config in enumerate(configs):
        on_progress(f"loading {config.model} to decode")
        try:
            engines[place] = start_decoding(config, batch, context, rounds * steps)
            found.append("")
        except InputError as error:
            found.append(str(error))
    if not engines:
        return found
    seen = {place: DecodeSamples() for place in engines}
    buffer = read_buffer(next(iter(engines.values())).model.device)
    reads = []
    order = list(engines)
    for number in range(rounds):
        on_progress(f"decoding, round {number + 1} of {rounds}")
        for place in order:
            decode(engines[place], steps, seen[place])
        order.reverse()
        reads.append(read_rate(buffer))
    for place, engine in engines.items():
        found[place] = _decoding(engine, seen[place], steps, reads, (batch, context))
    return found


def _decoding(
    engine: ServingEngine,
    seen: DecodeSamples,
    steps: int,
    reads: list[float],
    load: tuple[int, int],
) -> Decoding:
    batch, context = load
    kv_bytes = round(statistics.fmean(seen.contexts) * engine.ready.ledger.bytes_per_token)
    return Decoding(
        tokens_per_second=batch / statistics.median(seen.steps),
        step_seconds=tuple(
            statistics.median(seen.steps[start : start + steps])
            for start in range(0, len(seen.steps), steps)
        ),
        held_bytes=engine.model.weight_bytes(),
        read_bytes=read_bytes_per_step(engine.model, batch) + kv_bytes,
        machine_bytes_per_second=statistics.median(reads),
        dtype=str(engine.model.dtype).removeprefix("torch."),
        device=engine.model.device.type,
        threads=torch.get_num_threads(),
        batch=batch,
        context=context,
    )
