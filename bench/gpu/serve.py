"""Serving on this machine's GPU, in five tables; random weights, so nothing is downloaded.

    python bench/gpu/serve.py [--rehearse]

Batch-1 decode as a share of the memory's bandwidth (8B shape in bf16, int8, int4; a 0.6B shape,
which waits for launches), 256 mixed requests beside transformers' continuous batching, how long the
GPU idles between decode steps, and the kernels alone beside PyTorch's. A part that fails prints a
line and the others go on; the exit code is then 1. `--rehearse`: tiny shapes, also on a CPU.
"""

from __future__ import annotations

import argparse
import gc
import random
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from statistics import median
from typing import Any
from unittest import mock

import torch
from serve_kernels import DEVICE, kernels_alone, seconds_of
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    ContinuousBatchingConfig,
    GenerationConfig,
    LlamaConfig,
    Qwen3Config,
    logging,
)

from ridgeline.serve.config import EngineConfig
from ridgeline.serve.engine.engine import ServingEngine
from ridgeline.serve.messages import Delta, Sampling, Submit
from ridgeline.serve.model import load

BUDGET_SECONDS = 210.0
"""No part is begun after that."""
PEER_SECONDS = 45.0
"""A peer that needs longer is stopped; the answers that it has finished count."""
GIB = 2**30
LLAMA_8B = LlamaConfig(
    hidden_size=4096, intermediate_size=14336, num_hidden_layers=32, num_attention_heads=32,
    num_key_value_heads=8, vocab_size=128256, max_position_embeddings=8192,
)  # fmt: skip
QWEN3_06B = Qwen3Config(
    hidden_size=1024, intermediate_size=3072, num_hidden_layers=28, num_attention_heads=16,
    num_key_value_heads=8, head_dim=128, vocab_size=151936, tie_word_embeddings=True,
    max_position_embeddings=8192,
)  # fmt: skip
TINY = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "head_dim": 16,
        "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 512,
        "max_position_embeddings": 512}  # fmt: skip


@dataclass(frozen=True)
class Size:
    """How much is run."""

    large: Any
    small: Any
    decoded: int = 192
    requests: int = 256
    shortest: int = 100
    longest: int = 1024
    batch: int = 64
    kv_bytes: int = 40 * GIB
    bandwidth_bytes: int = 4 * GIB
    contexts: tuple[int, ...] = (1024, 8192)
    layer: tuple[int, int] = (14336, 4096)


REHEARSAL = Size(
    large=LlamaConfig(**TINY),
    small=Qwen3Config(**TINY),
    decoded=24,
    requests=6,
    shortest=5,
    longest=12,
    batch=4,
    kv_bytes=2**22,
    bandwidth_bytes=2**24,
    contexts=(40,),
    layer=(96, 64),
)


@contextmanager
def engine(config: Any, **changes: Any) -> Iterator[ServingEngine]:
    """An engine over random weights, made on the device instead of read from a disk."""

    def made_here(
        options: EngineConfig, dtype: torch.dtype, device: torch.device, *_: object
    ) -> tuple[Any, None, None]:
        torch.manual_seed(0)
        about = AutoConfig.from_pretrained(options.model)
        with torch.device(device):
            return AutoModelForCausalLM.from_config(about, dtype=dtype).eval(), None, None

    free_memory()
    with tempfile.TemporaryDirectory() as folder:
        config.save_pretrained(folder)
        dtype = "bf16" if DEVICE.type == "cuda" else "fp32"
        with mock.patch.object(load, "read_model", made_here):
            running = ServingEngine(EngineConfig(model=folder, dtype=dtype, **changes))
        try:
            yield running
        finally:
            running.close()


def free_memory() -> None:
    """Of engines that nobody holds any more; their models are in cycles."""
    gc.collect()
    if DEVICE.type == "cuda":
        torch.cuda.empty_cache()


def submit(to: ServingEngine, name: str, prompt: list[int], new_tokens: int) -> None:
    greedy = Sampling(max_tokens=new_tokens, temperature=0.0, ignore_eos=True)
    to.handle(Submit(id=name, prompt=tuple(prompt), sampling=greedy))


def new_tokens(of: ServingEngine) -> int:
    """Of one step."""
    of.step()
    messages = of.take()
    assert all(isinstance(one, Delta) for one in messages), messages
    return sum(len(one.tokens) for one in messages)


def bandwidth_bytes_per_second(size: Size) -> float:
    """The better of reading once and of copying, over memory that no cache holds."""
    source = torch.zeros(size.bandwidth_bytes // 4, device=DEVICE)
    target = torch.empty_like(source)
    copied = 2 * source.nbytes / seconds_of(lambda: target.copy_(source))
    read = source.nbytes / seconds_of(lambda: torch.amax(source))
    return max(copied, read)


def one_stream(config: Any, size: Size, **changes: Any) -> tuple[float, int]:
    """Seconds a token at batch 1, and the weight bytes that each token reads."""
    options = {"max_sequences": 1, "max_length": 512, "kv_bytes": min(size.kv_bytes, GIB)}
    with engine(config, **options, **changes) as running:
        submit(running, "one", list(range(1, 17)), size.decoded)
        times = []
        while running.has_work:
            began = time.perf_counter()
            new_tokens(running)
            times.append(time.perf_counter() - began)
        read = running.model.weight_bytes()
        table = running.model.model.get_input_embeddings().weight
        head = getattr(running.model.model.get_output_embeddings(), "weight", None)
        tied = head is not None and head.data_ptr() == table.data_ptr()
        return median(times[8:]), read if tied else read - table.nbytes


def decode_share(size: Size) -> None:
    bandwidth = bandwidth_bytes_per_second(size)
    print(f"Read bandwidth measured in this run: {bandwidth / 1e9:,.0f} GB/s.\n")
    print("| batch-1 decode | graphs | ms a token | tokens/s | GB a token | share of bandwidth |")
    print("|---|---|---|---|---|---|")
    shapes = [("8B", size.large, weights) for weights in ("model", "int8", "int4")]
    group = 128 if size.large is LLAMA_8B else 32
    for name, config, weights in [*shapes, ("0.6B", size.small, "model")]:
        for graphs in (True, False):
            options = {"weights": weights, "graphs": graphs, "group_size": group}
            seconds, read = one_stream(config, size, **options)
            label = "bf16" if weights == "model" else weights
            print(
                f"| {name} shape, {label} | {'on' if graphs else 'off'} | {seconds * 1e3:.2f} "
                f"| {1 / seconds:,.0f} | {read / 1e9:.2f} | {read / seconds / bandwidth:.2f} |"
            )


@dataclass(frozen=True)
class Workload:
    """Prompts and how many tokens each answer has."""

    prompts: list[list[int]] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)

    @classmethod
    def seeded(cls, size: Size) -> Workload:
        """The same at each run."""
        draw = random.Random(0)
        lengths = [draw.randint(size.shortest, size.longest) for _ in range(2 * size.requests)]
        words = size.small.vocab_size
        prompts = [[draw.randrange(words) for _ in range(n)] for n in lengths[: size.requests]]
        return cls(prompts, lengths[size.requests :])


def mixed_workload(size: Size) -> None:
    work = Workload.seeded(size)
    total = sum(work.lengths)
    print(
        f"{size.requests} requests at once, 0.6B shape, {size.shortest} to {size.longest} tokens "
        f"in and out, {sum(map(len, work.prompts)):,} in, {total:,} out.\n"
    )
    print("| engine | seconds | output tokens/s |\n|---|---|---|")
    seconds = of_ridgeline(size, work)
    print(f"| Ridgeline | {seconds:.1f} | {total / seconds:,.0f} |", flush=True)
    best = ContinuousBatchingConfig(use_cuda_graph=True, use_async_batching=True)
    settings = {"defaults": ContinuousBatchingConfig()}
    if DEVICE.type == "cuda":
        settings = {"graphs, async": best} | settings
    for name, setting in settings.items():
        try:
            seconds, made, attention = of_transformers(size, work, setting)
        except Exception as error:  # the peer's failure is a line of the table
            print(f"| transformers, {name} | {type(error).__name__}: {str(error)[:80]} | |")
            continue
        stopped = "" if made == total else f", stopped with {made / total:.0%} in finished answers"
        line = f"{seconds:.1f} | {made / seconds:,.0f}"
        print(f"| transformers, {name} ({attention}{stopped}) | {line} |", flush=True)


def of_ridgeline(size: Size, work: Workload) -> float:
    """Seconds for the workload."""
    total = sum(work.lengths)
    options = {"kv_bytes": size.kv_bytes, "max_tokens_per_step": 8192 if total > 1000 else 64}
    with engine(size.small, max_sequences=max(size.requests, 2), **options) as running:
        submit(running, "warm", work.prompts[0], 8)
        while running.has_work:
            new_tokens(running)
        began = time.perf_counter()
        for index, prompt in enumerate(work.prompts):
            submit(running, str(index), prompt, work.lengths[index])
        made = 0
        while running.has_work:
            made += new_tokens(running)
        seconds = time.perf_counter() - began
    assert made == total, f"{made} tokens came, {total} were asked for"
    return seconds


def of_transformers(
    size: Size, work: Workload, setting: ContinuousBatchingConfig
) -> tuple[float, int, str]:
    """Seconds, tokens, and the attention that transformers chose (flash if it has it)."""
    free_memory()
    dtype = torch.bfloat16 if DEVICE.type == "cuda" else torch.float32
    setting.max_memory_percent = 0.6
    with torch.device(DEVICE):
        config = AutoConfig.for_model(**size.small.to_dict())
        model = AutoModelForCausalLM.from_config(config, dtype=dtype).eval()
    greedy = GenerationConfig(do_sample=False, max_new_tokens=size.longest, eos_token_id=-1)
    made = 0
    with (
        torch.no_grad(),
        model.continuous_batching_context_manager(
            generation_config=greedy, continuous_batching_config=setting
        ) as manager,
    ):
        began = time.perf_counter()
        for index, prompt in enumerate(work.prompts):
            manager.add_request(
                prompt, str(index), max_new_tokens=work.lengths[index], eos_token_id=-1
            )
        finished = 0
        over = began + PEER_SECONDS
        while finished < size.requests and time.perf_counter() < over and manager.is_running():
            result = manager.get_result(timeout=1)
            if result is not None and result.is_finished():
                finished += 1
                made += len(result.generated_tokens)
        seconds = time.perf_counter() - began
        attention = model.config._attn_implementation
    assert finished, "no answer was finished"
    return seconds, made, attention


def idle_between_steps(size: Size) -> None:
    print(f"| shape, {size.batch} streams | ms a step | GPU idle |\n|---|---|---|")
    for name, config in (("8B", size.large), ("0.6B", size.small)):
        seconds, idle = decode_steps(config, size)
        print(f"| {name} | {seconds * 1e3:.2f} | {idle:.1%} |", flush=True)


def decode_steps(config: Any, size: Size, steps: int = 20) -> tuple[float, float]:
    """Seconds a step, and the share of the time in which no kernel ran."""
    options = {"max_sequences": size.batch, "kv_bytes": size.kv_bytes, "max_length": 512}
    with engine(config, **options) as running:
        for index in range(size.batch):
            submit(running, str(index), [index % 100 + 1] * 32, 64 + size.decoded)
        while len(running.scheduler.running) < size.batch or running.scheduler.waiting:
            new_tokens(running)
        for _ in range(8):
            new_tokens(running)
        activities = [torch.profiler.ProfilerActivity.CPU]
        if DEVICE.type == "cuda":
            activities = [torch.profiler.ProfilerActivity.CUDA]
            torch.cuda.synchronize()
        with torch.profiler.profile(activities=activities) as profile:
            began = time.perf_counter()
            for _ in range(steps):
                assert new_tokens(running) == size.batch
            seconds = (time.perf_counter() - began) / steps
        return seconds, idle_share(profile)


def idle_share(profile: torch.profiler.profile) -> float:
    """Of the time from the first kernel to the end of the last."""
    events = profile.profiler.kineto_results.events()
    wanted = torch.autograd.DeviceType.CUDA if DEVICE.type == "cuda" else None
    spans = sorted(
        (event.start_ns(), event.start_ns() + event.duration_ns())
        for event in events
        if wanted is None or event.device_type() == wanted
    )
    busy, reached = 0, spans[0][0]
    for start, end in spans:
        busy += max(0, end - max(start, reached))
        reached = max(reached, end)
    return 1 - busy / (reached - spans[0][0])


PARTS = {
    "Batch-1 decode": decode_share,
    "Mixed workload": mixed_workload,
    "Idle between decode steps": idle_between_steps,
    "Kernels alone": lambda size: kernels_alone(size.contexts, size.batch, size.layer),
}


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--rehearse", action="store_true")
    rehearse = options.parse_args().rehearse
    if DEVICE.type != "cuda" and not rehearse:
        sys.exit("bench/gpu/serve.py: PyTorch sees no GPU here; --rehearse runs tiny shapes")
    size = REHEARSAL if rehearse else Size(LLAMA_8B, QWEN3_06B)
    logging.set_verbosity_error()
    name = torch.cuda.get_device_name() if DEVICE.type == "cuda" else "CPU, a rehearsal"
    print(f"{name}, torch {torch.__version__}, {datetime.now(UTC).date()}")
    began, failed = time.perf_counter(), False
    for title, part in PARTS.items():
        print(f"\n### {title}\n", flush=True)
        if time.perf_counter() - began > BUDGET_SECONDS:
            print(f"not begun: {BUDGET_SECONDS:.0f} s are over")
            failed = True
            continue
        try:
            part(size)
        except Exception as error:  # one part may fail, the others are still worth having
            traceback.print_exc()
            print(f"\nfailed: {type(error).__name__}: {str(error).splitlines()[:1]}")
            failed = True
    print(f"\n{time.perf_counter() - began:.0f} s in all")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
