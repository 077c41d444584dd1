r"""Every format's linear layer, Ridgeline's beside torch's own, at 1, 8 and 64 rows.

    python bench/kernels/linear_by_cpu.py [--threads 1] [--rounds 30]
    RIDGELINE_CPU_TARGET=haswell ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2 \
        MKL_ENABLE_INSTRUCTIONS=AVX2 python bench/kernels/linear_by_cpu.py

The second command holds both sides to AVX2 on a larger CPU. A row is Ridgeline's time over torch's
in rounds that run the two in turns, over weights that leave the cache between them, with its 95 %
interval: below 1, Ridgeline's is faster. What is timed is CPU time of the
thread with one thread, so that other programs disturb it little, else the wall clock.
"""

import argparse
import os
import platform
import statistics
import time

import torch

from ridgeline.measure.statistics.intervals import ratio_interval
from ridgeline.serve.weights.choice import ROWS, SIDE, Format, pair_of

COPIES = 4
"""Of each layer, used in turn."""
FORMATS = [
    Format("dense", torch.float32),
    Format("dense", torch.bfloat16),
    Format("int8", torch.bfloat16),
    Format("int4", torch.bfloat16, 32),
    Format("int4", torch.bfloat16, 128),
    Format("w8a8", torch.bfloat16),
]


def prepacked_of(layer):
    """Torch's float32 layer in oneDNN's own order, as inductor's freezing leaves it."""
    weight = torch.ops.mkldnn._reorder_linear_weight(layer.weight.detach(), None)
    return lambda x: torch.ops.mkldnn._linear_pointwise(x, weight, None, "none", [], "")


def seconds(clock, layer, x):
    began = clock()
    layer(x)
    return clock() - began


def compared(form, rows, rounds, clock, prepacked):
    pairs = [pair_of(form) for _ in range(COPIES)]
    if prepacked:
        pairs = [(ours, prepacked_of(theirs)) for ours, theirs in pairs]
    x = torch.randn(rows, SIDE).to(form.dtype)
    times = [
        [seconds(clock, layer, x) for layer in pairs[turn % COPIES]] for turn in range(rounds + 2)
    ][2:]
    return [one[0] for one in times], [one[1] for one in times]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=30)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    clock = time.thread_time if options.threads == 1 else time.perf_counter
    target = os.environ.get("RIDGELINE_CPU_TARGET", "native")
    print(f"{platform.machine()}, torch {torch.__version__} held to "
          f"{torch.backends.cpu.get_cpu_capability()}, kernels for {target}, "
          f"{options.threads} threads, {SIDE} x {SIDE}")  # fmt: skip
    with torch.inference_mode():
        for form in FORMATS:
            for rows in ROWS:
                for prepacked in (False, True)[: 1 + (form.dtype == torch.float32)]:
                    ours, theirs = compared(form, rows, options.rounds, clock, prepacked)
                    ratio = ratio_interval(ours, theirs)
                    name = form.name + (", torch prepacked" if prepacked else "")
                    both = [f"{statistics.median(one) * 1e6:>8.0f} us" for one in (ours, theirs)]
                    print(f"{name:<48} {rows:>3} rows  ours {both[0]}  torch {both[1]}  "
                          f"{ratio.ratio:.2f} [{ratio.low:.2f}, {ratio.high:.2f}]",
                          flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
