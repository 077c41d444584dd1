"""Training kernels against their goals on a GPU, and a step of a Llama with them and without.

    python bench/gpu/training_kernels.py [WORD…]

Rows are those of `ridgeline kernels bench`. What a tile of a window or of a block mask costs is
compared with a tile of the causal rows; the step is timed beside Liger where that is installed.
(Not called kernels.py: transformers would import it in the place of the package of that name.)
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from statistics import median

import torch
from torch import nn
from transformers import AutoModelForCausalLM, LlamaConfig

from ridgeline.kernels.bench.rows import rows
from ridgeline.kernels.bench.timing import measure
from ridgeline.kernels.fused_modules import fuse_modules
from ridgeline.records.kernel_bench import KernelBench
from ridgeline.report.views.kernel_bench import timing_cells

LEAST_PER_TILE = 0.9
STEP_GOALS = {"step": 1.15, "memory": 0.7}
MODEL = {
    "vocab_size": 128256, "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 8,
    "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64,
}  # fmt: skip
"""A Llama 3.2 1B of half the depth."""


def main() -> None:
    if not torch.cuda.is_available():
        sys.exit("bench/gpu/training_kernels.py needs a GPU")
    found = measure(rows(), tuple(sys.argv[1:]), lambda name: print(name, file=sys.stderr))
    print(
        f"{found.device}, torch {found.torch}, copy {found.copy_bytes_per_second / 1e9:,.0f} GB/s"
    )
    print("\n| kernel | way | µs | rate | ours of it |\n|---|---|---|---|---|")
    for one in found.timings:
        print("|", " | ".join(str(cell or "") for cell in timing_cells(one)), "|")
    print()
    per_tile(found)
    if not sys.argv[1:]:
        steps()


def per_tile(found: KernelBench) -> None:
    """Rates of sparse masks over those of causal attention of the same length, in tiles seen."""
    rates = {one.kernel: one.flops_per_second for one in found.timings if one.way == "ours"}
    for name, rate in rates.items():
        direction = "forward and backward" if name.endswith("backward") else "forward"
        dense = rates.get(f"attention causal 8192 {direction}")
        if rate and dense and ("window" in name or "blocks" in name):
            print(f"- {name}: {rate / dense:.2f} of dense per tile (goal {LEAST_PER_TILE})")


def steps() -> None:
    """Eight steps of each way on the same tokens: time, peak memory, loss."""
    ways: dict[str, Callable[[nn.Module], object]] = {
        "as it is": lambda _: None,
        "fused-kernels": fuse_modules,
    }
    try:
        from liger_kernel.transformers import apply_liger_kernel_to_llama
    except ImportError:
        print("\nLiger is not installed: no row of it")
    else:
        ways["Liger"] = lambda model: apply_liger_kernel_to_llama(model=model)
    print("\n| a step of 8 × 2,048 tokens | ms | GB | last loss | step × | memory × |")
    print("|---|---|---|---|---|---|")
    first: tuple[float, float] | None = None
    for name, change in ways.items():
        seconds, peak_bytes, loss = trained(change)
        first = first or (seconds, peak_bytes)
        print(
            f"| {name} | {seconds * 1e3:,.0f} | {peak_bytes / 1e9:.1f} | {loss:.4f} |"
            f" {first[0] / seconds:.2f} | {peak_bytes / first[1]:.2f} |"
        )
    print(f"\nGoals of fused-kernels: step × {STEP_GOALS['step']}, memory × {STEP_GOALS['memory']}")


def trained(change: Callable[[nn.Module], object]) -> tuple[float, float, float]:
    """Median seconds of a step, peak bytes, and the last loss."""
    torch.manual_seed(0)
    torch.cuda.empty_cache()
    with torch.device("cuda"):
        model = AutoModelForCausalLM.from_config(LlamaConfig(**MODEL), dtype=torch.bfloat16)
        tokens = torch.randint(0, MODEL["vocab_size"], (8, 2048))
    change(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    torch.cuda.reset_peak_memory_stats()
    times = []
    for _ in range(8):
        torch.cuda.synchronize()
        began = time.perf_counter()
        loss = model(input_ids=tokens, labels=tokens, use_cache=False).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - began)
    return median(times[3:]), torch.cuda.max_memory_allocated(), float(loss)


if __name__ == "__main__":
    main()
