"""Training kernels at sizes of real models, each beside what else computes the same.

A row has ways: ours, `torch.compile` of the reference, a library's own. Bytes are those that must
be moved once; goals are ratios of ours to another way's rate, or to the measured copy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor

from ridgeline.kernels.adamw import adamw_step
from ridgeline.kernels.bench.attention import attention_rows
from ridgeline.kernels.bench.inference import inference_rows
from ridgeline.kernels.bench.timing import MADE, BenchRow
from ridgeline.kernels.gated_product import (
    ACTIVATIONS,
    Activation,
    gated_product,
    gated_product_reference,
)
from ridgeline.kernels.grouped_matmul import grouped_matmul
from ridgeline.kernels.linear_cross_entropy import (
    linear_cross_entropy,
    linear_cross_entropy_reference,
)
from ridgeline.kernels.muon import orthogonalise
from ridgeline.kernels.residual_norm import (
    residual_layer_norm,
    residual_norm_reference,
    residual_rms_norm,
)
from ridgeline.kernels.rotary import rotary, rotary_reference

MEMORY_BOUND = {"copy": 0.88, "compiled": 1.0}
TOKENS = 16384


def rows() -> Iterator[BenchRow]:
    """Every kernel, at sizes of real models."""
    for size in (1024, 4096, 8192):
        yield from norm_rows(size)
    for activation in ACTIVATIONS:
        yield from gated_rows(activation)
    yield from rotary_rows()
    yield from attention_rows()
    yield loss_row()
    yield adamw_row()
    yield experts_row()
    yield dense_row()
    yield muon_row()
    yield from inference_rows()


def both_ways(
    name: str,
    ours: Callable[..., tuple[Tensor, ...]],
    theirs: Callable[..., tuple[Tensor, ...]],
    leaves: list[Tensor],
    forward_bytes: int,
    backward_bytes: int,
) -> Iterator[BenchRow]:
    """Forward alone, and backward alone of a graph that is kept."""
    ways = {"ours": ours, "compiled": torch.compile(theirs), "eager": theirs}
    with torch.no_grad():
        forward = {way: lambda work=work: work(*leaves) for way, work in ways.items()}
        yield BenchRow(
            name=f"{name} forward", ways=forward, moved_bytes=forward_bytes, goals=MEMORY_BOUND
        )
    backward = {way: partial(_gradients, work, leaves, {}) for way, work in ways.items()}
    yield BenchRow(
        name=f"{name} backward", ways=backward, moved_bytes=backward_bytes, goals=MEMORY_BOUND
    )


def _gradients(
    work: Callable[..., tuple[Tensor, ...]],
    leaves: list[Tensor],
    kept: dict[str, list[Tensor]],
) -> tuple[Tensor, ...]:
    """The backward of a graph that the first call makes and keeps.

    That call is on the stream of the later ones: a backward runs where its forward ran, and nothing
    may run elsewhere while a CUDA graph is recorded.
    """
    if not kept:
        kept["results"] = list(work(*leaves))
        kept["upper"] = [torch.randn_like(one) for one in kept["results"]]
    return torch.autograd.grad(kept["results"], leaves, kept["upper"], retain_graph=True)


def norm_rows(size: int) -> Iterator[BenchRow]:
    """Norms of a residual sum, both kinds."""
    x, residual = (torch.randn(TOKENS, size, **MADE, requires_grad=True) for _ in "xr")
    weight, bias = (torch.randn(size, **MADE, requires_grad=True) for _ in "wb")
    yield from both_ways(
        f"RMS norm {TOKENS} × {size}",
        lambda x, r, w: residual_rms_norm(x, w, 1e-6, residual=r),
        lambda x, r, w: residual_norm_reference(x, r, w, None, 1e-6),
        [x, residual, weight],
        4 * x.nbytes,
        4 * x.nbytes,
    )
    yield from both_ways(
        f"layer norm {TOKENS} × {size}",
        lambda x, r, w, b: residual_layer_norm(x, w, b, 1e-6, residual=r),
        lambda x, r, w, b: residual_norm_reference(x, r, w, b, 1e-6, centred=True),
        [x, residual, weight, bias],
        4 * x.nbytes,
        4 * x.nbytes,
    )


def gated_rows(activation: Activation) -> Iterator[BenchRow]:
    """The gate of an 8B model's MLP."""
    gate, up = (torch.randn(TOKENS, 14336, **MADE, requires_grad=True) for _ in "gu")
    yield from both_ways(
        f"{activation} gate {TOKENS} × 14336",
        lambda g, u: (gated_product(g, u, activation),),
        lambda g, u: (gated_product_reference(g, u, activation),),
        [gate, up],
        3 * gate.nbytes,
        5 * gate.nbytes,
    )


def rotary_rows() -> Iterator[BenchRow]:
    """Queries and keys of 16,384 tokens turned at once."""
    shapes = [(4, TOKENS // 4, count, 128) for count in (32, 8)]
    queries, keys = (torch.randn(shape, **MADE).transpose(1, 2) for shape in shapes)
    queries.requires_grad_()
    keys.requires_grad_()
    cos, sin = (torch.randn(1, TOKENS // 4, 128, **MADE) for _ in "cs")
    moved = 2 * (queries.nbytes + keys.nbytes) + cos.nbytes + sin.nbytes
    yield from both_ways(
        "rotary 32 + 8 heads of 128",
        lambda q, k: rotary(q, k, cos, sin),
        lambda q, k: rotary_reference(q, k, cos, sin),
        [queries, keys],
        moved,
        moved,
    )


def loss_row() -> BenchRow:
    """The head of an 8B model: forward and backward, counted as three matmuls."""
    x = torch.randn(8192, 4096, **MADE, requires_grad=True)
    weight = (torch.randn(128256, 4096, **MADE) / 64).requires_grad_()
    target = torch.randint(0, 128256, (8192,), device="cuda")
    ways = {"ours": linear_cross_entropy, "compiled": torch.compile(linear_cross_entropy_reference)}

    def gradients(work: Callable[..., Tensor]) -> object:
        return torch.autograd.grad(work(x, weight, target), (x, weight))

    return BenchRow(
        name="linear + cross-entropy 8192 × 4096 × 128256",
        ways={way: partial(gradients, work) for way, work in ways.items()},
        flops=3 * 2 * 8192 * 4096 * 128256,
        goals={"compiled": 1.0},
    )


def adamw_row() -> BenchRow:
    """300 tensors of 4 million; ours copies addresses to the device, which a graph would freeze."""
    lists = [[torch.randn(2048, 2048, device="cuda") for _ in range(300)] for _ in "pgmv"]
    parameters, gradients, means, squares = lists
    squares = [one.square_() for one in squares]
    optimizer = torch.optim.AdamW(parameters, lr=1e-3, fused=True, capturable=True)
    for one, gradient in zip(parameters, gradients, strict=True):
        one.grad = gradient
    settings = {"learning_rate": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.01}
    return BenchRow(
        name="AdamW 300 × 2048²",
        ways={
            "ours": lambda: adamw_step(parameters, gradients, means, squares, **settings, step=5),
            "torch fused": optimizer.step,
        },
        moved_bytes=7 * 4 * 300 * 2048**2,
        in_a_graph=False,
        goals={"copy": 0.85},
    )


def experts_row() -> BenchRow:
    """128 experts of 2048 × 768, eight for each of 16,384 tokens, beside one matmul of all rows."""
    rows, experts, depth, outputs = 8 * TOKENS, 128, 2048, 768
    x = torch.randn(rows, depth, **MADE)
    weight = torch.randn(experts, depth, outputs, **MADE)
    cuts = torch.randint(0, rows, (experts - 1,), device="cuda").sort().values
    ends = torch.cat([cuts, cuts.new_tensor([rows])]).to(torch.int32)
    return BenchRow(
        name=f"grouped matmul {experts} × {depth} × {outputs}",
        ways={
            "ours": lambda: grouped_matmul(x, weight, ends),
            "torch grouped": lambda: torch.nn.functional.grouped_mm(x, weight, offs=ends),
            "one dense matmul": lambda: x @ weight[0],
        },
        flops=2 * rows * depth * outputs,
        goals={"one dense matmul": 0.8},
    )


def dense_row() -> BenchRow:
    """The same kernel with one group: a dense product, beside the library's."""
    size = 8192
    x, weight = torch.randn(size, size, **MADE), torch.randn(1, size, size, **MADE)
    ends = torch.tensor([size], dtype=torch.int32, device=MADE["device"])
    return BenchRow(
        name=f"matmul {size}³",
        ways={"ours": lambda: grouped_matmul(x, weight, ends), "cuBLAS": lambda: x @ weight[0]},
        flops=2 * size**3,
        goals={"cuBLAS": 0.85},
    )


def muon_row() -> BenchRow:
    """The iteration on eight matrices; counted as if products were not symmetric."""
    size = 4096
    x = torch.randn(8, size, size, **MADE)

    def plain() -> Tensor:
        found = x / x.norm(dim=(1, 2), keepdim=True)
        for _ in range(5):
            gram = found @ found.transpose(1, 2)
            update = torch.baddbmm(gram, gram, gram, beta=-4.775, alpha=2.0315)
            found = torch.baddbmm(found, update, found, beta=3.4445)
        return found

    return BenchRow(
        name=f"Muon's iteration 8 × {size}²",
        ways={"ours": lambda: orthogonalise(x), "full products": plain},
        flops=8 * 5 * 3 * 2 * size**3,
    )
