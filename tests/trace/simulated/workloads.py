"""Healthy programs of real size: CNN and GPT training, decode, prefill, DLRM, diffusion.

Healthy means: kernels fill the GPU, copies are pinned, collectives overlap.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tests.trace.simulated.operators import (
    SIZE,
    adam,
    attention,
    backward_of,
    convolution,
    linear,
    stream_op,
    transformer,
    view,
)
from tests.trace.simulated.program import Collective, Kernel, Loader, Op, Parallel, Program


def gpt(gpu: str, *, hidden: int = 2048, layers: int = 12, tokens: int = 8192,
        sequence: int = 2048, dtype: str = "bf16", gemm: float | None = None,
        softmax: float | None = None, steps: int = 4) -> Program:  # fmt: skip
    """Training of a GPT."""
    forward = transformer(tokens, sequence, hidden, layers, dtype, gemm=gemm, softmax=softmax)
    head = linear("aten::linear", tokens, hidden, 16384, dtype, layers, gemm)
    loss = stream_op("aten::cross_entropy_loss", "cross_entropy", 6.0 * tokens * 16384, layers)
    return Program(
        name="gpt", gpu=gpu, steps=steps, forward=(*forward, head, loss),
        backward=backward_of((*forward, head), dtype),
        optimizer=adam(12.0 * layers * hidden * hidden),
        loader=Loader(batch_us=3000.0, workers=4, bytes=8.0 * tokens),
    )  # fmt: skip


RESNET50 = ((64, 256, 3, 56), (128, 512, 4, 28), (256, 1024, 6, 14), (512, 2048, 3, 7))
"""Per stage: inner channels, outer channels, blocks, pixels per side."""


def resnet(gpu: str, *, batch: int = 64, dtype: str = "bf16", gemm: float | None = None,
           steps: int = 4) -> Program:  # fmt: skip
    """Training of a ResNet-50 on 224 × 224 images."""
    size = SIZE[dtype]
    ops: list[Op] = []

    def unit(inside: int, out: int, window: int, side: int, stride: int, layer: int) -> None:
        ops.append(convolution(batch, inside, out, window, side, stride, dtype, layer, gemm))
        moved = float(size * batch * side * side * out)
        dims = ((batch, out, side, side),)
        ops.append(
            stream_op("aten::batch_norm", "batch_norm", 3 * moved, layer, dtype, 0.6, dims=dims)
        )
        ops.append(stream_op("aten::relu", "relu", 2 * moved, layer, dtype, dims=dims))

    unit(3, 64, 7, 112, 2, 0)
    inside, layer = 64, 1
    for inner, outer, blocks, side in RESNET50:
        for at in range(blocks):
            stride = 2 if at == 0 and inner > 64 else 1
            unit(inside, inner, 1, side * stride, 1, layer)
            unit(inner, inner, 3, side, stride, layer)
            unit(inner, outer, 1, side, 1, layer)
            inside, layer = outer, layer + 1
    forward = tuple(ops)
    return Program(
        name="resnet", gpu=gpu, steps=steps, forward=forward,
        backward=backward_of(forward, dtype), optimizer=adam(25.6e6),
        loader=Loader(batch_us=40000.0, workers=8, bytes=1.0 * batch * 3 * 224 * 224),
    )  # fmt: skip


def prefill(gpu: str, *, hidden: int = 4096, layers: int = 16, tokens: int = 4096,
            gemm: float | None = None, softmax: float | None = None, split: int = 1,
            talk: str = "multimem", steps: int = 4) -> Program:  # fmt: skip
    """Prefill of a language model: one long pass per step."""
    forward = transformer(tokens, 2048, hidden, layers, gemm=gemm, softmax=softmax, split=split,
                          talk=talk)  # fmt: skip
    return Program(name="prefill", gpu=gpu, steps=steps, forward=forward,
                   parallel=Parallel(ranks=split))  # fmt: skip


def decode(gpu: str, *, batch: int = 64, hidden: int = 4096, layers: int = 24,
           context: int = 2048, graph: bool = True, steps: int = 6) -> Program:  # fmt: skip
    """Decode: a token for each of `batch` sequences per step, from a captured graph."""
    ops: list[Op] = [stream_op("aten::embedding", "embedding", 4.0 * batch * hidden, -1)]
    whole = 2.0 * batch * hidden
    for at in range(layers):
        cache = 2.0 * 2 * batch * context * hidden / 8
        paged = Kernel("paged", 4.0 * batch * context * hidden, cache, "bf16", 0.7, 512)
        ops += [
            stream_op("_C::rms_norm", "layer_norm", 2 * whole, at),
            linear("aten::linear", batch, hidden, 3 * hidden // 2, "bf16", at, 0.8),
            view("aten::split", at),
            Op("vllm::unified_attention", (paged,), ((batch, hidden),), layer=at),
            linear("aten::linear", batch, hidden, hidden, "bf16", at, 0.8),
            stream_op("_C::fused_add_rms_norm", "layer_norm", 4 * whole, at),
            linear("aten::linear", batch, hidden, 7 * hidden, "bf16", at, 0.8),
            stream_op("_C::silu_and_mul", "gelu", 10 * whole, at),
            linear("aten::linear", batch, 7 * hidden // 2, hidden, "bf16", at, 0.8),
        ]
    return Program(name="decode", gpu=gpu, steps=steps, forward=tuple(ops), graph=graph)


def dlrm(gpu: str, *, batch: int = 16384, tables: int = 26, ranks: int = 1,
         steps: int = 5) -> Program:  # fmt: skip
    """Training of a recommender: embeddings from memory, then a small MLP."""
    ops: list[Op] = []
    wide, rows = 128, 20
    for at in range(0, tables, 4):
        moved = 4.0 * batch * 4 * wide * (rows + 1)
        ops.append(stream_op("fbgemm::split_embedding_codegen_lookup", "embedding_bag", moved,
                             at // 4, "fp32", 0.7))  # fmt: skip
    if ranks > 1:
        talk = Collective("all_to_all", "all_to_all", 4.0 * batch * tables * wide / ranks)
        ops.append(Op("c10d::alltoall_base_", layer=8, collective=talk))
    for inside, out in ((512, 256), (1024, 1024), (1024, 1024), (1024, 512), (512, 256)):
        ops.append(linear("aten::linear", batch, inside, out, "bf16", 9))
        ops.append(stream_op("aten::relu", "relu", 4.0 * batch * out, 9))
    forward = tuple(ops)
    return Program(
        name="dlrm", gpu=gpu, steps=steps, forward=forward,
        backward=backward_of(forward, "bf16"), optimizer=adam(2.6e6, 2),
        loader=Loader(batch_us=2000.0, workers=4, bytes=4.0 * batch * (tables + 13)),
        parallel=Parallel(ranks=ranks, kind="ddp" if ranks > 1 else "", dtype_bytes=4),
    )  # fmt: skip


def dlrm_ranks(gpu: str, *, ranks: int = 4, **shape: Any) -> Program:
    """A recommender whose embeddings lie on different ranks: exchanged by all-to-all."""
    return replace(dlrm(gpu, ranks=ranks, **shape), name="dlrm_ranks")


def diffusion(gpu: str, *, batch: int = 8, softmax: float | None = None,
              gemm: float | None = None, steps: int = 5) -> Program:  # fmt: skip
    """Sampling from a U-Net: convolutions, group norms and attention per denoising step."""
    ops: list[Op] = []
    for layer, (side, channels) in enumerate(
        ((64, 320), (64, 320), (32, 640), (32, 640), (16, 1280), (16, 1280),
         (32, 640), (32, 640), (64, 320), (64, 320))
    ):  # fmt: skip
        moved = 2.0 * batch * side * side * channels
        tokens = batch * side * side
        for _ in range(2):
            ops.append(stream_op("aten::group_norm", "group_norm", 2 * moved, layer, "bf16", 0.6))
            ops.append(stream_op("aten::silu", "gelu", 2 * moved, layer))
            ops.append(convolution(batch, channels, channels, 3, side, 1, "bf16", layer, gemm))
        ops.append(linear("aten::linear", tokens, channels, 3 * channels, "bf16", layer, gemm))
        ops += attention(tokens, side * side, channels - channels % 128, "bf16", softmax=softmax,
                         layer=layer)  # fmt: skip
        ops.append(linear("aten::linear", tokens, channels, channels, "bf16", layer, gemm))
        ops.append(stream_op("aten::add", "add", 3 * moved, layer, inputs=2))
    return Program(name="diffusion", gpu=gpu, steps=steps, forward=tuple(ops))


def ddp(gpu: str, *, ranks: int = 2, steps: int = 3, passes: int = 1, link: str = "nvlink",
        **shape: Any) -> Program:  # fmt: skip
    """A GPT over data-parallel ranks; buckets overlap with the backward pass."""
    one = gpt(gpu, steps=steps, **({"hidden": 1536, "layers": 8} | shape))
    parallel = Parallel(ranks=ranks, kind="ddp", link=link)
    return replace(one, name="ddp", passes=passes, parallel=parallel)


def resnet_ddp(gpu: str, *, ranks: int = 2, batch: int = 64, steps: int = 3) -> Program:
    """A ResNet-50 over data-parallel ranks."""
    one = resnet(gpu, batch=batch, steps=steps)
    return replace(one, name="resnet_ddp", parallel=Parallel(ranks=ranks, kind="ddp"))


def fsdp(gpu: str, *, ranks: int = 2, steps: int = 3, **shape: Any) -> Program:
    """A GPT with sharded weights, gathered one layer ahead."""
    one = gpt(gpu, steps=steps, **({"hidden": 2048, "layers": 8} | shape))
    return replace(one, name="fsdp", parallel=Parallel(ranks=ranks, kind="fsdp"))


def tensor_parallel(gpu: str, *, ranks: int = 2, talk: str = "multimem",
                    **shape: Any) -> Program:  # fmt: skip
    """Prefill over ranks that share every layer."""
    shape = {"layers": 12, "tokens": 8192} | shape
    return replace(prefill(gpu, split=ranks, talk=talk, **shape), name="tensor_parallel")


def pipeline(gpu: str, *, ranks: int = 2, steps: int = 3, passes: int = 16, tokens: int = 2048,
             hidden: int = 2048, layers: int = 8, schedule: str = "gpipe",
             ) -> Program:  # fmt: skip
    """A GPT whose layers lie on different ranks; a step is so many micro-batches."""
    inside = transformer(tokens, 1024, hidden, layers, "bf16")
    return Program(
        name="pipeline", gpu=gpu, steps=steps, passes=passes, forward=inside,
        backward=backward_of(inside, "bf16"), optimizer=adam(12.0 * layers * hidden**2 / ranks),
        parallel=Parallel(ranks=ranks, kind="pipeline", message_bytes=2.0 * tokens * hidden,
                          schedule=schedule),
    )  # fmt: skip


def ring(gpu: str, *, ranks: int = 4, steps: int = 3, tokens: int = 8192, hidden: int = 2048,
         layers: int = 8) -> Program:  # fmt: skip
    """A GPT whose sequence lies on different ranks, which pass keys and values around."""
    one = gpt(gpu, steps=steps, tokens=tokens, hidden=hidden, layers=layers)
    parallel = Parallel(ranks=ranks, kind="ring", message_bytes=1.0 * tokens * hidden)
    return replace(one, name="ring", parallel=parallel)


WORKLOADS: dict[str, Callable[..., Program]] = {
    "gpt": gpt, "resnet": resnet, "prefill": prefill, "decode": decode, "dlrm": dlrm,
    "dlrm_ranks": dlrm_ranks,
    "diffusion": diffusion, "ddp": ddp, "resnet_ddp": resnet_ddp, "fsdp": fsdp,
    "tensor_parallel": tensor_parallel, "pipeline": pipeline, "ring": ring,
}  # fmt: skip


def built(workload: str, gpu: str, options: dict[str, Any]) -> Program:
    """A healthy program that knows what it was built with."""
    made = replace(WORKLOADS[workload](gpu, **options), options=options)
    if gpu != "v100":
        return made
    return replace(made, forward=_half(made.forward), backward=_half(made.backward),
                   optimizer=_half(made.optimizer))  # fmt: skip


def _half(ops: tuple[Op, ...]) -> tuple[Op, ...]:
    """A V100 knows no bf16: fp16 in its place."""
    return tuple(
        replace(
            op,
            dtype="fp16" if op.dtype == "bf16" else op.dtype,
            parts=_half(op.parts),
            kernels=tuple(
                replace(one, dtype="fp16") if one.dtype == "bf16" else one for one in op.kernels
            ),
        )
        for op in ops
    )
