"""How many FLOPs an operator takes, a multiply-add counted as two.

From torch's own registry (`torch.utils.flop_counter`), and from the formulas below for what it
leaves out on the CPU.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.flop_counter import flop_registry, sdpa_backward_flop_count, sdpa_flop_count

aten = torch.ops.aten


def flops_of(packet: Any, args: Any, kwargs: Any, out: Any) -> float:
    """FLOPs of one call; 0 for an operator without a formula."""
    formula = flop_registry.get(packet) or FLOP_FORMULAS.get(packet)
    return float(formula(*args, **kwargs, out_val=out)) if formula else 0.0


def _attention_flops(query: Any, key: Any, value: Any, *args: Any, **kwargs: Any) -> int:
    return int(sdpa_flop_count(query.shape, key.shape, value.shape))


def _attention_backward_flops(
    grad: Any, query: Any, key: Any, value: Any, *args: Any, **kwargs: Any
) -> int:
    return int(sdpa_backward_flop_count(grad.shape, query.shape, key.shape, value.shape))


def _lstm_flops(inputs: Any, weight: Any, recurrent: Any, *args: Any, **kwargs: Any) -> int:
    """Each time step multiplies every sample by both weight matrices."""
    rows = inputs.numel() // inputs.shape[-1]
    return 2 * rows * (weight.numel() + recurrent.numel())


def _lstm_backward_flops(*args: Any, **kwargs: Any) -> int:
    return 2 * _lstm_flops(*args)


def _encoder_layer_flops(source: Any, *args: Any, **kwargs: Any) -> int:
    """One fused transformer layer: every row meets every weight, and every row of its sample."""
    weights = [t for t in args if isinstance(t, torch.Tensor) and t.dim() == 2]
    rows = source.numel() // source.shape[-1]
    scores = 4 * rows * source.shape[-2] * source.shape[-1]
    return 2 * rows * sum(weight.numel() for weight in weights) + scores


def _attention_module_flops(query: Any, key: Any, value: Any, *args: Any, **kwargs: Any) -> int:
    return _encoder_layer_flops(query, *args)


FLOP_FORMULAS: dict[Any, Any] = {
    aten._transformer_encoder_layer_fwd: _encoder_layer_flops,
    aten._native_multi_head_attention: _attention_module_flops,
    aten._scaled_dot_product_flash_attention_for_cpu: _attention_flops,
    aten._scaled_dot_product_flash_attention_for_cpu_backward: _attention_backward_flops,
    aten.mkldnn_rnn_layer: _lstm_flops,
    aten.mkldnn_rnn_layer_backward: _lstm_backward_flops,
}
