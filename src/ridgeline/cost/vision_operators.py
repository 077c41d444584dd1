"""The operators of a vision network, forward and backward, with FLOPs and bytes.

The conventions are those of `operators.py`. A convolution is the matmul that it is computed as
(implicit GEMM; Chetlur et al., cuDNN, 1410.0759, section 3); its traffic counts images and weights
themselves, not their unrolled copies. In inference a batch norm behind a convolution is folded into
it; in training norms read their input twice (statistics, then normalising). Fused attention keeps
its scores on the chip (FlashAttention-2, 2307.08691); its backward pass is 2.5 times its FLOPs.
What the network computes of parameters alone moves the same bytes for any batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ridgeline.cost.attention_operators import BACKWARD_FLOPS
from ridgeline.cost.operator import Direction, Kind, ModelOperator, Pass
from ridgeline.errors import InputError
from ridgeline.models.vision.network import MULTIPLYING, VisionNetwork, VisionOperator

FLOPS = {"norm": 4, "activation": 1, "softmax": 5, "pool": 1, "elementwise": 1, "copy": 0}
"""Per element read, forward."""
READ_AGAIN = {"norm": 2, "activation": 1, "softmax": 1, "elementwise": 1}
"""How often the backward pass reads again what the forward pass read or wrote; sums read none."""
WITHOUT_INPUTS = ("add", "sub", "neg", "addcmul")
"""Elementwise functions whose gradient does not need their inputs."""


def vision_operators(
    network: VisionNetwork, batch: int, phase: str = "train", dtype: str = "bf16"
) -> list[ModelOperator]:
    """All operators of one pass over `batch` images; equal ones stand once, with their `count`.

    >>> from ridgeline.models.vision.presets import load_network
    >>> operators = vision_operators(load_network("resnet50"), 1, "prefill")
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
    backward: list[tuple[ModelOperator, int]] = []
    for one in network.operators:
        if is_folded(one) and not step.trains:
            continue
        for place, placed in enumerate(_passes(one, step)):
            if place == 0:
                counts[placed] = counts.get(placed, 0) + one.count
            else:
                backward.append((placed, one.count))
    for placed, count in reversed(backward):
        counts[placed] = counts.get(placed, 0) + count
    return [replace(operator, count=count) for operator, count in counts.items()]


def is_folded(one: VisionOperator) -> bool:
    """Whether inference can do without it: a batch norm that scales a convolution's result."""
    return one.function == "batch_norm" and one.after.startswith("conv")


def _passes(one: VisionOperator, step: Pass) -> Iterator[ModelOperator]:
    """The forward operator, then its backward ones in training."""
    if one.function == "attention":
        yield from _attention(one, step)
    elif one.kind in MULTIPLYING:
        yield from _matmul(one, step)
    else:
        yield from _elementwise(one, step)


def _matmul(one: VisionOperator, step: Pass) -> Iterator[ModelOperator]:
    inputs, outputs = one.input_elements * step.batch, one.output_elements * step.batch
    weights = one.weight_elements
    flops = 2.0 * one.macs * step.batch
    read, written = step.operand_bytes, step.activation_bytes
    forward = _placed(one, step, "matmul", flops, read * (inputs + weights) + written * outputs)
    yield forward
    if not step.trains:
        return

    def back(of: str, moved_bytes: float) -> ModelOperator:
        return _backward(forward, f", {of} gradient", flops, moved_bytes)

    if one.after:  # the image itself needs no gradient
        yield back("input", read * (outputs + weights) + written * inputs)
    if one.kind == "product":
        yield back("other input", read * (outputs + inputs) + written * inputs)
    else:
        yield back("weight", read * (inputs + outputs) + written * weights)


def _attention(one: VisionOperator, step: Pass) -> Iterator[ModelOperator]:
    """The products of a fused kernel; its scores and their softmax never leave the chip."""
    if one.kind == "softmax":
        return
    moved = one.input_elements
    if one.after == "attention":
        scores = one.groups * one.in_size[0] * one.in_channels
        moved = one.input_elements - scores + one.output_elements
    flops = 2.0 * one.macs * step.batch
    forward = _placed(one, step, "attention", flops, moved * step.batch * step.activation_bytes)
    yield forward
    if step.trains:
        yield _backward(
            forward, ", gradient", BACKWARD_FLOPS * forward.flops, 2.0 * forward.moved_bytes
        )


def _elementwise(one: VisionOperator, step: Pass) -> Iterator[ModelOperator]:
    inputs, outputs = one.input_elements * step.batch, one.output_elements * step.batch
    reads = 2 if one.kind == "norm" and step.trains else 1
    moved = reads * inputs + outputs + one.weight_elements
    flops = float(FLOPS[one.kind] * max(inputs, outputs))
    forward = _placed(one, step, "elementwise", flops, moved * step.activation_bytes)
    yield forward
    if step.trains and one.after:
        again = 0 if one.function in WITHOUT_INPUTS else READ_AGAIN.get(one.kind, 0)
        back = max(1, reads) * outputs + again * inputs + inputs + one.weight_elements
        yield _backward(forward, ", gradient", 2.0 * flops, back * step.activation_bytes)


def _backward(
    forward: ModelOperator, suffix: str, flops: float, moved_bytes: float
) -> ModelOperator:
    direction: Direction = "backward"
    return replace(
        forward,
        name=f"{forward.name}{suffix}",
        direction=direction,
        flops=flops,
        moved_bytes=moved_bytes,
    )


def _placed(
    one: VisionOperator, step: Pass, kind: Kind, flops: float, moved_bytes: float
) -> ModelOperator:
    return ModelOperator(
        name=_name(one),
        direction="forward",
        kind=kind,
        shape=_shape(one, step.batch),
        dtype=step.dtype,
        flops=flops,
        moved_bytes=moved_bytes,
    )


def _name(one: VisionOperator) -> str:
    channels = f"{one.in_channels}→{one.out_channels}"
    if one.kind == "conv":
        grouped = "depthwise " if one.groups == one.in_channels > 1 else ""
        grouped = grouped or (f"{one.groups} groups " if one.groups > 1 else "")
        transposed = "transposed " if one.function == "conv_transpose" else ""
        return f"{grouped}{transposed}conv {one.kernel[0]}x{one.kernel[1]} {channels}"
    if one.kind == "linear":
        return f"{one.function} {channels}"
    if one.function == "attention":
        return f"attention {'AV' if one.after == 'attention' else 'QKᵀ'} {channels}"
    if one.kind == "product":
        return f"matmul {channels}"
    return f"{one.function} {one.out_channels}"


def _shape(one: VisionOperator, batch: int) -> str:
    """The result as text: images x groups x places x channels."""
    height, width = one.out_size
    places = f"{height}" if width == 1 else f"{height}²" if height == width else f"{height}x{width}"
    groups = f" x {one.groups}" if one.kind in ("product", "softmax") and one.groups > 1 else ""
    where = "" if places == "1" else f" x {places}"
    return f"{batch}{groups}{where} x {one.out_channels}"
