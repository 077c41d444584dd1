"""Makes the layer that multiplies a weight here: on a CPU by whose kernel `choice.py` says."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ridgeline.serve.messages import LinearKernel
from ridgeline.serve.weights.choice import Format, kernel_for, only_ridgeline
from ridgeline.serve.weights.linears import (
    DenseLinear,
    FrozenLinear,
    Int4Linear,
    Int8Linear,
    W8A8Linear,
)
from ridgeline.serve.weights.torch_linears import (
    TorchInt4Linear,
    TorchInt8Linear,
    TorchW8A8Linear,
)


def dense_layer(weight: Tensor, bias: Tensor | None) -> DenseLinear | None:
    """The weight in panels; None: torch's own layer is faster here, or all there is."""
    chosen = kernel_for(Format("dense", _arithmetic(weight.dtype)))
    if chosen.kernel == "torch":
        return None
    layer = DenseLinear(weight, bias)
    layer.kernel = chosen
    return layer


def int8_layer(
    quantised: Tensor,
    scales: Tensor,
    zeros: Tensor | None,
    bias: Tensor | None,
    dtype: torch.dtype,
) -> FrozenLinear:
    """int8 or float8_e4m3fn [out, in], scales and zeros [out, groups]; `dtype`: of activations."""
    if quantised.is_cuda:
        return Int8Linear(quantised, scales, zeros, bias)
    groups = scales.shape[1]
    if quantised.dtype == torch.int8 and groups == 1 and zeros is None:
        chosen = kernel_for(Format("int8", _arithmetic(dtype)))
    else:
        chosen = only_ridgeline(_described(quantised, groups, zeros))
    made = Int8Linear if chosen.kernel == "ridgeline" else TorchInt8Linear
    return _chosen(made(quantised, scales, zeros, bias), chosen)


def int4_layer(
    quantised: Tensor,
    scales: Tensor,
    zeros: Tensor | None,
    bias: Tensor | None,
    dtype: torch.dtype,
) -> FrozenLinear:
    """int8 levels in −8 … 7 [out, in], scales and zeros [out, groups]."""
    if quantised.is_cuda:
        return Int4Linear(quantised, scales, zeros, bias)
    group = quantised.shape[1] // scales.shape[1]
    taken = TorchInt4Linear.takes(quantised, scales)
    if taken:
        chosen = kernel_for(Format("int4", _arithmetic(dtype), group))
    else:
        chosen = only_ridgeline(f"int4 in groups of {group}, {quantised.shape[0]} outputs")
    if chosen.kernel == "ridgeline":
        return _chosen(Int4Linear(quantised, scales, zeros, bias), chosen)
    made = TorchInt4Linear if taken else TorchInt8Linear
    return _chosen(made(quantised, scales, zeros, bias), chosen)


def w8a8_layer(
    quantised: Tensor,
    scales: Tensor,
    bias: Tensor | None,
    step: float | None,
    dtype: torch.dtype,
) -> FrozenLinear:
    """int8 [out, in], scales [out, 1]; activations are rounded to int8 in steps of `step`."""
    chosen = kernel_for(Format("w8a8", _arithmetic(dtype)))
    made = W8A8Linear if chosen.kernel == "ridgeline" else TorchW8A8Linear
    return _chosen(made(quantised, scales, bias, step), chosen)


def kernels_of(model: nn.Module) -> tuple[LinearKernel, ...]:
    """Whose kernels a model's linear layers use on this CPU, each format once."""
    found: dict[str, LinearKernel] = {}
    for module in model.modules():
        if isinstance(module, FrozenLinear) and module.kernel is not None:
            found[module.kernel.weights] = module.kernel
        elif type(module) is nn.Linear and module.weight.device.type == "cpu":
            chosen = kernel_for(Format("dense", _arithmetic(module.weight.dtype)))
            found.setdefault(chosen.weights, chosen)
    return tuple(found.values())


def _chosen(layer: FrozenLinear, kernel: LinearKernel) -> FrozenLinear:
    layer.kernel = kernel
    return layer


def _arithmetic(dtype: torch.dtype) -> torch.dtype:
    """What a kernel gets: float16 is widened first."""
    return torch.float32 if dtype == torch.float16 else dtype


def _described(quantised: Tensor, groups: int, zeros: Tensor | None) -> str:
    name = str(quantised.dtype).removeprefix("torch.")
    group = "" if groups == 1 else f" in groups of {quantised.shape[1] // groups}"
    return f"{name}{group}{'' if zeros is None else ' with zero points'}"
