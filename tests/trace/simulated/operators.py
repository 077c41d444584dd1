"""Operators of real models: matmuls, attention, convolutions, and their backward passes.

FLOPs and bytes follow from the shapes: a matmul of m × k × n has 2mkn FLOPs and moves its three
matrices once; what is elementwise moves its inputs and outputs once. A backward matmul is two.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from tests.trace.simulated.program import Collective, Kernel, Op

ALIGNED = 0.6
"""A large matmul that reaches less of its roof than this has dimensions that no tile fits."""
SIZE = {"bf16": 2, "fp16": 2, "fp32": 4}


def matmul(m: int, k: int, n: int, dtype: str, efficiency: float | None = None) -> Kernel:
    odd = efficiency is not None and efficiency < ALIGNED
    sort = "gemm_fp32" if dtype == "fp32" else "gemm_odd" if odd else "gemm"
    # A matmul with few rows reads its weights: cuBLAS splits k to fill the GPU.
    blocks = max(-(-m // 128) * -(-n // 128), 1)
    moved = SIZE[dtype] * (m * k + k * n + m * n)
    return Kernel(sort, 2.0 * m * k * n, moved, dtype, efficiency, max(blocks, 256))


def linear(
    name: str, m: int, k: int, n: int, dtype: str, layer: int, efficiency: float | None = None
) -> Op:
    if efficiency is not None and efficiency < ALIGNED:
        k, n = k + 1, n + 1  # odd dimensions are why it is slow
    inner = Op("aten::addmm", (matmul(m, k, n, dtype, efficiency),),
               ((n,), (m, k), (k, n), (), ()), dtype, ("", "", "", "1", "1"))  # fmt: skip
    return Op(name, (), ((m, k), (n, k), (n,)), dtype, parts=(inner,), layer=layer)


def stream_op(
    name: str, sort: str, moved: float, layer: int, dtype: str = "bf16",
    efficiency: float | None = None, *, inputs: int = 1,
    dims: tuple[tuple[int, ...], ...] = (),
) -> Op:  # fmt: skip
    """An operator that reads `inputs` equal tensors and writes one, `moved` bytes in all."""
    blocks = max(int(moved // 16384), 1)
    kernel = Kernel(sort, moved / SIZE[dtype], moved, dtype, efficiency, max(blocks, 216))
    rows = max(int(moved / SIZE[dtype] / (inputs + 1) / 256), 1)
    return Op(name, (kernel,), dims or ((rows, 256),) * inputs, dtype, layer=layer)


def view(name: str, layer: int) -> Op:
    """An operator that launches nothing."""
    return Op(name, layer=layer)


def attention(tokens: int, sequence: int, hidden: int, dtype: str, *, softmax: float | None,
              layer: int) -> list[Op]:  # fmt: skip
    """Fused attention; unfused, as three kernels with a softmax at that share of its roof."""
    batch, size, heads = tokens // sequence, SIZE[dtype], hidden // 128
    flops = 2.0 * 2 * tokens * sequence * hidden
    shape = (batch, heads, sequence, 128)
    if softmax is None and dtype != "fp32":
        fused = Kernel("flash", flops, 4.0 * size * tokens * hidden, dtype, 0.55)
        inner = Op("aten::_scaled_dot_product_flash_attention", (fused,), (shape,) * 3, dtype)
        return [Op("aten::scaled_dot_product_attention", (), (shape,) * 3, dtype, parts=(inner,),
                   layer=layer)]  # fmt: skip
    scores = float(batch * heads * sequence * sequence * size)
    sort = "gemm_fp32" if dtype == "fp32" else "gemm"
    product = Kernel(sort, flops / 2, scores + 2.0 * size * tokens * hidden, dtype)
    flat = (batch * heads, sequence, 128)
    return [
        Op("aten::bmm", (product,), (flat, (batch * heads, 128, sequence)), dtype, layer=layer),
        stream_op("aten::_softmax", "softmax", 2 * scores, layer, dtype, softmax,
                  dims=((batch, heads, sequence, sequence),)),
        Op("aten::bmm", (product,), ((batch * heads, sequence, sequence), flat), dtype,
           layer=layer),
    ]  # fmt: skip


def transformer(
    tokens: int, sequence: int, hidden: int, layers: int, dtype: str = "bf16",
    *, gemm: float | None = None, softmax: float | None = None,
    split: int = 1, talk: str = "all_reduce",
) -> tuple[Op, ...]:  # fmt: skip
    """A decoder's forward pass; `split` ranks share each layer (tensor parallelism)."""
    wide, size = 4 * hidden // split, SIZE[dtype]
    whole = float(size * tokens * hidden)
    ops = [stream_op("aten::embedding", "embedding", 2 * whole, -1, dtype)]
    summed = Collective(talk, "allreduce", whole, 2) if split > 1 else None
    for at in range(layers):
        ops += [
            stream_op("aten::layer_norm", "layer_norm", 2 * whole, at, dtype),
            linear("aten::linear", tokens, hidden, 3 * hidden // split, dtype, at, gemm),
            view("aten::split", at), view("aten::view", at), view("aten::transpose", at),
            *attention(tokens, sequence, hidden // split, dtype, softmax=softmax, layer=at),
            view("aten::view", at),
            linear("aten::linear", tokens, hidden // split, hidden, dtype, at, gemm),
        ]  # fmt: skip
        ops += [Op("c10d::allreduce_", layer=at, collective=summed)] if summed else []
        ops += [
            stream_op("aten::add", "add", 3 * whole, at, dtype, inputs=2),
            stream_op("aten::layer_norm", "layer_norm", 2 * whole, at, dtype),
            linear("aten::linear", tokens, hidden, wide, dtype, at, gemm),
            stream_op("aten::gelu", "gelu", 8 * whole / split, at, dtype),
            linear("aten::linear", tokens, wide, hidden, dtype, at, gemm),
        ]
        ops += [Op("c10d::allreduce_", layer=at, collective=summed)] if summed else []
        ops += [stream_op("aten::add", "add", 3 * whole, at, dtype, inputs=2)]
    return tuple(ops)


_BACKWARD = {
    "aten::linear": "AddmmBackward0", "aten::layer_norm": "NativeLayerNormBackward0",
    "aten::gelu": "GeluBackward0", "aten::add": "AddBackward0", "aten::bmm": "BmmBackward0",
    "aten::_softmax": "SoftmaxBackward0", "aten::embedding": "EmbeddingBackward0",
    "aten::scaled_dot_product_attention": "ScaledDotProductFlashAttentionBackward0",
    "aten::conv2d": "ConvolutionBackward0", "aten::batch_norm": "CudnnBatchNormBackward0",
    "aten::relu": "ReluBackward0", "aten::group_norm": "NativeGroupNormBackward0",
    "fbgemm::split_embedding_codegen_lookup": "SplitLookupFunctionBackward",
}  # fmt: skip
_SORT = {
    "layer_norm": "layer_norm_backward", "flash": "flash_backward", "batch_norm":
    "batch_norm_backward", "embedding_bag": "embedding_bag_backward",
}  # fmt: skip


def backward_of(forward: tuple[Op, ...], dtype: str) -> tuple[Op, ...]:
    """The backward pass: two products for each, a fused attention 2.5 times, the rest once."""
    return tuple(_gradient(op, dtype) for op in reversed(forward)
                 if op.name in _BACKWARD and op.all_kernels())  # fmt: skip


def _gradient(op: Op, dtype: str) -> Op:
    kernel = op.all_kernels()[0]
    name, gradient, size = _BACKWARD[op.name], 0.0, SIZE[dtype]
    if op.name == "aten::linear":
        (m, k), (n, _) = op.dims[:2]
        parts = tuple(
            Op("aten::mm", (matmul(*shape, dtype, kernel.efficiency),),
               ((shape[0], shape[1]), (shape[1], shape[2])), dtype)
            for shape in ((m, n, k), (k, m, n))
        )  # fmt: skip
        gradient = float(size * k * n)
    elif op.name == "aten::conv2d":
        parts = (_convolution_backward(op, kernel, dtype),)
        gradient = float(4 * prod(op.dims[1]))
    elif kernel.sort == "flash":
        more = replace(kernel, sort="flash_backward", flops=2.5 * kernel.flops,
                       bytes=2 * kernel.bytes)  # fmt: skip
        parts = (Op("aten::_scaled_dot_product_flash_attention_backward", (more,),
                    (op.dims[0], *op.dims), dtype),)  # fmt: skip
    elif op.name == "aten::batch_norm":
        gradient = 8.0 * op.dims[0][1]
        more = replace(kernel, sort="batch_norm_backward", bytes=1.5 * kernel.bytes)
        parts = (Op("aten::cudnn_batch_norm_backward", (more,), op.dims * 2, dtype),)
    elif op.name == "aten::bmm":
        first, second = op.dims
        parts = tuple(
            Op("aten::bmm", (kernel,), pair, dtype)
            for pair in ((_turned(first), (*first[:2], second[2])),
                         ((*first[:2], second[2]), _turned(second)))
        )  # fmt: skip
    else:  # reads the gradient beside the input
        moved = 1.5 * kernel.bytes
        more = replace(kernel, sort=_SORT.get(kernel.sort, kernel.sort), bytes=moved)
        inner = op.name.replace("aten::", "aten::native_") + "_backward"
        parts = (Op(inner, (more,), (*op.dims, *op.dims[:1]), dtype),)
    return Op(name, (), (), dtype, parts=parts, layer=op.layer, gradient_bytes=gradient)


def _turned(shape: tuple[int, ...]) -> tuple[int, ...]:
    return (shape[0], shape[2], shape[1])


def _convolution_backward(op: Op, kernel: Kernel, dtype: str) -> Op:
    tail = "_fp32" if dtype == "fp32" else ""
    kernels = (replace(kernel, sort=f"dgrad{tail}"), replace(kernel, sort=f"wgrad{tail}"))
    image, weight = op.dims[:2]
    stride, padding = op.values[3:5]
    side = image[2] // int(stride.strip("[]").split(",")[0])
    dims = ((image[0], weight[0], side, side), image, weight, *((),) * 8)
    values = ("", "", "", "[0]", stride, padding, "[1, 1]", "False", "[0, 0]", "1",
              "[True, True, False]")  # fmt: skip
    return Op("aten::convolution_backward", kernels, dims, dtype, values)


def adam(parameters: float, calls: int = 6) -> tuple[Op, ...]:
    """Fused AdamW: reads four and writes three fp32 numbers per parameter."""
    share = 28.0 * parameters / calls
    return tuple(stream_op("aten::_fused_adamw_", "adam", share, -1, "fp32") for _ in range(calls))


def convolution(batch: int, inside: int, out: int, window: int, side: int, stride: int,
                dtype: str, layer: int, efficiency: float | None) -> Op:  # fmt: skip
    """A convolution to `side` × `side` pixels."""
    pixels, size = batch * side * side, SIZE[dtype]
    flops = 2.0 * pixels * out * inside * window * window
    moved = size * (float(pixels) * (out + inside * stride * stride)
                    + out * inside * window * window)  # fmt: skip
    sort = "conv_fp32" if dtype == "fp32" else "conv"
    image = (batch, inside, side * stride, side * stride)
    weight, steps = (out, inside, window, window), f"[{stride}, {stride}]"
    pad = f"[{window // 2}, {window // 2}]"
    kernel = Kernel(sort, flops, moved, dtype, efficiency or 0.55)
    plain = (image, weight, (), (), (), (), (), (), ())
    values = ("", "", "", steps, pad, "[1, 1]", "False", "[0, 0]", "1")
    inner = Op("aten::convolution", (kernel,), plain, dtype, values)
    return Op("aten::conv2d", (), plain[:7], dtype, ("", "", "", steps, pad, "[1, 1]", "1"),
              (inner,), layer)  # fmt: skip
