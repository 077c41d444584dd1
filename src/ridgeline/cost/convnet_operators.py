"""The operators of a convolutional network, forward and backward, with FLOPs and bytes.

The conventions are those of `operators.py`. A convolution is the matmul that it is computed as
(implicit GEMM; Chetlur et al., cuDNN, 1410.0759, section 3): rows are output places, inner is
kernel² · channels per group, outer the output channels; its traffic counts images and weights
themselves, not their unrolled copies. Batch norm reads its input twice in training (statistics,
then normalising) and is folded into the convolution in inference.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ridgeline.cost.operator import Direction, ModelOperator, Pass
from ridgeline.errors import InputError
from ridgeline.models import convnet
from ridgeline.models.convnet import ConvNet

FLOPS = {"norm": 4, "activation": 1, "pool": 1, "add": 1, "scale": 1}
"""Per element read, forward."""


def convnet_operators(
    network: ConvNet, batch: int, phase: str = "train", dtype: str = "bf16"
) -> list[ModelOperator]:
    """All operators of one pass over `batch` images; equal ones stand once, with their `count`.

    >>> from ridgeline.models.convnets import load_convnet
    >>> operators = convnet_operators(load_convnet("resnet50"), 1, "prefill")
    >>> macs = sum(one.flops * one.count for one in operators if one.kind == "matmul") / 2
    >>> round(macs / 1e9, 2)
    4.09
    """
    if phase == "decode":
        raise InputError(f"{network.name} generates no tokens; use --phase prefill or train")
    if batch < 1:
        raise InputError(f"batch {batch}: it must be 1 or more")
    step = Pass(
        phase="train" if phase == "train" else "prefill", seq=1, batch=batch, tp=1, dtype=dtype
    )
    counts: dict[ModelOperator, int] = {}
    backward: list[ModelOperator] = []
    for place, one in enumerate(network.operators):
        if one.kind == "norm" and not step.trains:
            continue
        forward, *late = _passes(one, step, is_first=place == 0)
        counts[forward] = counts.get(forward, 0) + 1
        backward += late
    for one_back in reversed(backward):
        counts[one_back] = counts.get(one_back, 0) + 1
    return [replace(operator, count=count) for operator, count in counts.items()]


def _passes(one: convnet.ConvOperator, step: Pass, *, is_first: bool) -> Iterator[ModelOperator]:
    """The forward operator, then its backward ones in training."""
    if one.kind not in ("conv", "linear"):
        yield from _elementwise(one, step)
        return
    inputs, outputs = one.input_elements * step.batch, one.output_elements * step.batch
    weights = one.parameters
    flops = 2.0 * one.macs * step.batch
    read, written = step.operand_bytes, step.activation_bytes
    yield _matmul(one, step, "", "forward", flops, read * (inputs + weights) + written * outputs)
    if not step.trains:
        return
    if not is_first:
        moved = read * (outputs + weights) + written * inputs
        yield _matmul(one, step, ", input gradient", "backward", flops, moved)
    moved = read * (inputs + outputs) + written * weights
    yield _matmul(one, step, ", weight gradient", "backward", flops, moved)


def _matmul(
    one: convnet.ConvOperator,
    step: Pass,
    suffix: str,
    direction: Direction,
    flops: float,
    moved_bytes: float,
) -> ModelOperator:
    places = "" if one.kind == "linear" else f" x {one.out_size}²"
    name = "linear"
    if one.kind == "conv":
        depthwise = "depthwise " if one.groups > 1 else ""
        name = f"{depthwise}conv {one.kernel}x{one.kernel}"
    name = f"{name} {one.in_channels}→{one.out_channels}"
    return ModelOperator(
        name=f"{name}{suffix}",
        direction=direction,
        kind="matmul",
        shape=f"{step.batch}{places} x {one.out_channels}",
        dtype=step.dtype,
        flops=flops,
        moved_bytes=moved_bytes,
    )


def _elementwise(one: convnet.ConvOperator, step: Pass) -> Iterator[ModelOperator]:
    inputs, outputs = one.input_elements * step.batch, one.output_elements * step.batch
    reads = 2 if one.kind == "norm" else 1
    flops = float(FLOPS[one.kind] * inputs)
    forward = ModelOperator(
        name=f"{one.kind} {one.in_channels}",
        direction="forward",
        kind="elementwise",
        shape=f"{step.batch} x {one.in_size}² x {one.in_channels}",
        dtype=step.dtype,
        flops=flops,
        moved_bytes=(reads * inputs + outputs) * step.activation_bytes,
    )
    yield forward
    if step.trains:
        # What the forward read is read again (twice by a norm, never by a sum) beside the
        # gradient of the result; the gradient of the input is written.
        again = {"norm": 2, "activation": 1, "scale": 1}.get(one.kind, 0)
        backward = (outputs * max(1, reads) + again * inputs + inputs) * step.activation_bytes
        yield replace(
            forward,
            name=f"{forward.name}, gradient",
            direction="backward",
            flops=2.0 * flops,
            moved_bytes=backward,
        )
