"""A stack of layers as one operator beside its parts called one after another.

    python bench/kernels/bench_decoder_layers.py [--model l125|l500] [--rows 1,4,16,…] [--threads 2]

Every layer has weights of its own, so that they come from memory as in a model; each row is one
sequence with a context of 128 tokens. Each line is the least of several rounds, both interleaved;
GB/s counts the bytes of the weights, and is given as a share of the read bandwidth measured between
the rounds of that line.
"""

import argparse
import platform
import time

import torch

from ridgeline.kernels import linear, linear_int4, linear_int8, linear_w8a8
from ridgeline.kernels.decoder_layers import LINEARS, READERS, Layers, decoder_layers
from ridgeline.kernels.gated_activation import silu_mul
from ridgeline.kernels.paged_attention import LayerCache, PackedTokens, paged_attention, write_cache
from ridgeline.kernels.rms_norm import rms_norm

SHAPES = {
    "l125": {"hidden": 768, "layers": 16, "heads": 12, "kv_heads": 4, "size": 64, "inner": 2048},
    "l500": {"hidden": 1536, "layers": 20, "heads": 12, "kv_heads": 4, "size": 128, "inner": 4096},
}
CONTEXT, BLOCK, GROUP, EPS, ROUNDS = 128, 16, 128, 1e-5, 7


def packed_weight(weights, outputs, depth):
    """Panels, scales, and sums where activations are rounded."""
    weight = torch.randn(outputs, depth) * depth**-0.5
    if weights == "bf16":
        return linear.pack(weight.bfloat16()), None, None
    if weights == "int8":
        levels, scales = linear_int8.quantise(weight)
        return linear_int8.pack(levels), linear_int8.pack_groups(scales), None
    if weights == "w8a8":
        return linear_w8a8.pack(*linear_int8.quantise(weight))
    levels, scales = linear_int4.quantise(weight, GROUP)
    return linear_int4.pack(levels), linear_int8.pack_groups(scales), None


def layers_of(shape, weights):
    hidden, inner = shape["hidden"], shape["inner"]
    of_queries, of_keys = (shape[name] * shape["size"] for name in ("heads", "kv_heads"))
    sizes = ((of_queries, hidden), (of_keys, hidden), (of_keys, hidden), (hidden, of_queries),
             (inner, hidden), (inner, hidden), (hidden, inner))  # fmt: skip
    made = [packed_weight(weights, *size) for _ in range(shape["layers"]) for size in sizes]
    return Layers(
        panels=[panels for panels, _, _ in made],
        scales=[scales for _, scales, _ in made],
        offsets=[sums for _, _, sums in made],
        steps=[0.0] * (len(READERS) * shape["layers"]),
        biases=[None] * len(made),
        norms=[torch.ones(hidden, dtype=torch.bfloat16) for _ in range(2 * shape["layers"])],
        head_norms=[None] * (2 * shape["layers"]),
        heads=shape["heads"],
        inner=inner,
        eps=EPS,
        offset=0.0,
        round_first=True,
        gelu=False,
        scale=shape["size"] ** -0.5,
        windows=[0] * shape["layers"],
        softcap=0.0,
    )


def step_of(shape, rows):
    """x, cos, sin, caches and who is who."""
    blocks = rows * CONTEXT // BLOCK
    held = (blocks, shape["kv_heads"], BLOCK, shape["size"])
    caches = [
        LayerCache(*(torch.randn(held, dtype=torch.bfloat16) for _ in range(2)))
        for _ in range(shape["layers"])
    ]
    tables = torch.arange(blocks, dtype=torch.int32).view(rows, -1)
    packed = PackedTokens(
        query_starts=torch.arange(rows + 1, dtype=torch.int32),
        context_lengths=torch.full((rows,), CONTEXT, dtype=torch.int32),
        block_tables=tables,
        slots=tables[:, -1].long() * BLOCK + BLOCK - 1,
        max_queries=1,
        max_context=CONTEXT,
    )
    x = torch.randn(rows, shape["hidden"], dtype=torch.bfloat16)
    turned = torch.rand(2, rows, shape["size"]).bfloat16()
    return x, turned[0], turned[1], caches, packed


def product(x, layers, place, name):
    at = len(LINEARS) * place + LINEARS.index(name)
    panels, scales, sums = layers.panels[at], layers.scales[at], layers.offsets[at]
    outputs = panels.shape[0] * linear.PANEL
    if sums is not None:
        return linear_w8a8.linear(x, panels, scales, sums, None, outputs)
    if scales is None:
        return linear.linear(x, panels, None, outputs)
    kernel = linear_int4 if panels.dtype == torch.uint8 else linear_int8
    return kernel.linear(x, panels, scales, None, None, outputs)


def rotated(heads, cos, sin):
    low, high = heads.chunk(2, -1)
    return heads * cos[:, None] + torch.cat((-high, low), -1) * sin[:, None]


def in_parts(x, cos, sin, layers, caches, packed):
    for place, cache in enumerate(caches):
        normed = rms_norm(x, layers.norms[2 * place], EPS)
        q, k, v = (
            product(normed, layers, place, name).unflatten(1, (-1, cos.shape[1])) for name in "qkv"
        )
        write_cache(rotated(k, cos, sin), v, cache, packed)
        out = paged_attention(rotated(q, cos, sin), cache, packed, scale=layers.scale)
        x = x + product(out.flatten(1), layers, place, "o")
        normed = rms_norm(x, layers.norms[2 * place + 1], EPS)
        gate, up = (product(normed, layers, place, name) for name in ("gate", "up"))
        x = x + product(silu_mul(gate, up), layers, place, "down")
    return x


def seconds(function, *inputs):
    began = time.perf_counter()
    function(*inputs)
    return time.perf_counter() - began


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=SHAPES, default="l125")
    parser.add_argument("--rows", default="1,4,16,64")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    memory = torch.ones(2**26)
    shape = SHAPES[options.model]
    print(f"{platform.processor() or platform.machine()}, {options.threads} threads, torch "
          f"{torch.__version__}, {options.model}")  # fmt: skip
    with torch.inference_mode():
        for weights in ("bf16", "int8", "int4", "w8a8"):
            layers = layers_of(shape, weights)
            held = [one for one in (*layers.panels, *layers.scales) if one is not None]
            size = sum(one.nbytes for one in held)
            for rows in map(int, options.rows.split(",")):
                x, cos, sin, caches, packed = step_of(shape, rows)
                inputs = (x, cos, sin, layers, caches, packed)
                one, parts, read = [], [], []
                for _ in range(ROUNDS):
                    read.append(seconds(memory.sum))
                    one.append(seconds(decoder_layers, *inputs))
                    parts.append(seconds(in_parts, *inputs))
                bandwidth = memory.nbytes / min(read)
                print(f"{weights} {rows:>3} rows: {min(one) * 1e3:7.2f} ms, "
                      f"{size / min(one) / 1e9:5.1f} GB/s, {size / min(one) / bandwidth:4.0%} of "
                      f"{bandwidth / 1e9:.1f}; in parts {min(parts) * 1e3:7.2f} ms, "
                      f"{min(parts) / min(one):.2f}x", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
