"""Linear layers in panels against the memory's speed and against torch's own kernels.

    python bench/kernels/bench_linear.py [--model l125|l500] [--rows 1,4,16,…] [--threads 2]

For every shape of the model's layers, weights of one shape are multiplied in turn, more of them
than the last-level cache holds. Each line is the least of several rounds, the kernels interleaved;
GB/s counts the bytes of the weights (and scales), and is given as a share of the read bandwidth
measured between the rounds of that line. Ratios are times of torch's kernels over ours: above 1,
ours is faster.
"""

import argparse
import platform
import time

import torch
from torch.nn import functional

from ridgeline.kernels import linear, linear_int4, linear_int8, linear_w8a8

SHAPES = {
    "l125": [(768, 768), (256, 768), (2048, 768), (768, 2048), (8192, 768)],
    "l500": [(1536, 1536), (512, 1536), (4096, 1536), (1536, 4096), (8192, 1536)],
}
"""Outputs and depth of q/o, k/v, gate/up, down, head."""
ROWS = (1, 2, 4, 8, 16, 32, 64, 256)
GROUP = 128
WORKING_SET_BYTES = 96e6
ROUNDS = 5


def copies_of(tensors, size_bytes):
    """Enough of them to go round past the cache."""
    count = max(2, round(WORKING_SET_BYTES / size_bytes))
    return [tensors] + [tuple(t.clone() for t in tensors) for _ in range(count - 1)]


def kernels(outputs, depth):
    """Name → (function of x and packed tensors, their copies, bytes read)."""
    torch.manual_seed(0)
    weight = torch.randn(outputs, depth) * depth**-0.5
    dense, size = weight.bfloat16(), outputs * depth
    levels8, scales8 = linear_int8.quantise(weight)
    levels4, scales4 = linear_int4.quantise(weight, GROUP)
    groups8, groups4 = linear_int8.pack_groups(scales8), linear_int8.pack_groups(scales4)
    size4 = size / 2 + scales4.numel() * 2
    torch4 = torch.ops.aten._convert_weight_to_int4pack_for_cpu((levels4 + 8).int(), 1)
    torch4_scales = torch.stack((scales4.T, torch.zeros_like(scales4.T)), -1).contiguous()

    def ours(function):
        return lambda x, *w: function(x, *w, None, outputs)

    def symmetric(function):
        return lambda x, panels, scales: function(x, panels, scales, None, None, outputs)

    def torch_int4(x, packed, scales):
        return torch.ops.aten._weight_int4pack_mm_for_cpu(x, packed, GROUP, scales)

    made = {
        "F.linear": (functional.linear, (dense,), 2 * size),
        "bf16": (ours(linear.linear), (linear.pack(dense),), 2 * size),
        "int8": (symmetric(linear_int8.linear), (linear_int8.pack(levels8), groups8), size),
        "w8a8": (
            ours(linear_w8a8.linear),
            linear_w8a8.pack(levels8, scales8),
            size,
        ),
        "int4": (symmetric(linear_int4.linear), (linear_int4.pack(levels4), groups4), size4),
        "int8pack": (torch._weight_int8pack_mm, (levels8, scales8.flatten().bfloat16()), size),
        "int4pack": (torch_int4, (torch4, torch4_scales), size4),
    }
    return {
        name: (function, copies_of(tensors, size_bytes), size_bytes)
        for name, (function, tensors, size_bytes) in made.items()
    }


def seconds(function, x, weights):
    began = time.perf_counter()
    for tensors in weights:
        function(x, *tensors)
    return (time.perf_counter() - began) / len(weights)


def read_bytes_per_second(memory):
    began = time.perf_counter()
    memory.sum()
    return memory.nbytes / (time.perf_counter() - began)


def measured(table, x, memory):
    """Least seconds per kernel, and the read bandwidth, in interleaved rounds."""
    least = dict.fromkeys(table, float("inf"))
    bandwidth = 0.0
    for _ in range(ROUNDS):
        bandwidth = max(bandwidth, read_bytes_per_second(memory))
        for name, (function, weights, _) in table.items():
            least[name] = min(least[name], seconds(function, x, weights))
    return least, bandwidth


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=SHAPES, default="l125")
    parser.add_argument("--rows", default=",".join(map(str, ROWS)))
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    memory = torch.ones(int(WORKING_SET_BYTES) // 4)
    print(f"{platform.processor() or platform.machine()}, {options.threads} threads, torch "
          f"{torch.__version__}, {options.model}; share: of the read bandwidth")  # fmt: skip
    print(f"{'outputs x depth':>15} {'rows':>4} {'GB/s':>5}  {'bf16':>22} {'int8':>22} "
          f"{'w8a8':>22} {'int4':>22}  bf16/F  int8/pack  int4/pack")  # fmt: skip
    with torch.inference_mode():
        for outputs, depth in SHAPES[options.model]:
            table = kernels(outputs, depth)
            for rows in map(int, options.rows.split(",")):
                x = torch.randn(rows, depth, dtype=torch.bfloat16)
                least, bandwidth = measured(table, x, memory)
                cells = []
                for name in ("bf16", "int8", "w8a8", "int4"):
                    speed = table[name][2] / least[name]
                    cells.append(
                        f"{least[name] * 1e6:6.0f} us {speed / 1e9:5.1f} {speed / bandwidth:4.0%}"
                    )
                print(f"{outputs:>8} x {depth:>4} {rows:>4} {bandwidth / 1e9:5.1f}  "
                      + "  ".join(f"{cell:>21}" for cell in cells)
                      + f"  {least['F.linear'] / least['bf16']:6.2f}"
                      f"  {least['int8pack'] / least['int8']:9.2f}"
                      f"  {least['int4pack'] / least['int4']:9.2f}", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
