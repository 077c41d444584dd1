"""How near decoding comes to the speed of memory, both measured in turns.

A decode step must read every weight once, so its floor is bytes over bandwidth. A machine's
bandwidth wavers by tens of percent within minutes, so a share means something only beside a read
measured in the same seconds: each round is some decode steps, then a plain read of a buffer too
large for any cache.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec
import torch
from torch import Tensor, nn

from ridgeline.errors import InputError
from ridgeline.hardware.machine import this_machine
from ridgeline.records.served import DecodeBench
from ridgeline.serve.config import EngineConfig
from ridgeline.serve.engine.engine import Engine
from ridgeline.serve.messages import Refused, Sampling, Submit
from ridgeline.serve.model.loaded import LoadedModel

WARM_UP_STEPS = 5
CACHE_MULTIPLE = 4
"""The buffer's size in last-level caches."""
SMALLEST_BUFFER_BYTES = 256 * 2**20
READS = 3
"""Of the buffer in a round; the fastest counts."""


@dataclass(slots=True)
class Seen:
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
    say: Callable[[str], None] = lambda _: None,
) -> DecodeBench:
    """Decode `batch` sequences greedily, `rounds` times `steps` steps.

    Args:
        config: Of the engine; some fields are set to what the measurement needs.
        batch: Sequences.
        context: Tokens of each prompt.
        rounds: Each followed by reads of memory.
        steps: Of decoding in a round.
        say: Told what is under way.

    Raises:
        InputError: The model cannot be served, or its positions or the cache end before the
            measurement does.
    """
    engine = decoding(config, batch, context, rounds * steps)
    say(f"loaded {config.model}")
    buffer = read_buffer(engine.model.device)
    seen = Seen()
    for place in range(rounds):
        say(f"round {place + 1} of {rounds}")
        decode(engine, steps, seen)
        seen.reads.append(read_rate(buffer))
    return _result(engine, config, batch, context, seen)


def decoding(config: EngineConfig, batch: int, context: int, steps: int) -> Engine:
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
    engine = Engine(config)
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


def decode(engine: Engine, steps: int, seen: Seen) -> None:
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
    engine: Engine, config: EngineConfig, batch: int, context: int, seen: Seen
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


def _computing_prompts(engine: Engine) -> bool:
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
