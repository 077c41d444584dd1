"""How many FLOPs an operator takes, a multiply-add counted as two.

From torch's own registry (`torch.utils.flop_counter`), and from the formulas below for what it
leaves out on the CPU.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.flop_counter import flop_registry, sdpa_backward_flop_count, sdpa_flop_count

aten = torch.ops.aten

SPARSE_PRODUCTS = (aten.mm, aten.addmm, aten._sparse_addmm, aten._sparse_mm_reduce_impl)
"""Products of two matrices, one of which may be sparse."""
_SPARSE_LAYOUTS = (
    torch.sparse_coo, torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc,
)  # fmt: skip


def flops_of(packet: Any, args: Any, kwargs: Any, out: Any) -> float:
    """FLOPs of one call; 0 for an operator without a formula.

    Of a sparse matrix only the elements that are stored are multiplied.
    """
    formula = flop_registry.get(packet) or FLOP_FORMULAS.get(packet)
    if not formula:
        return 0.0
    flops = float(formula(*args, **kwargs, out_val=out))
    sparse = (one for one in args if isinstance(one, torch.Tensor) and is_sparse(one))
    for matrix in sparse:
        flops *= stored_elements(matrix) / max(1, matrix.numel())
    return flops


def is_sparse(tensor: torch.Tensor) -> bool:
    """Are only some of its elements stored, with their places?"""
    return tensor.layout in _SPARSE_LAYOUTS


def stored_elements(tensor: torch.Tensor) -> int:
    """How many elements of a sparse tensor are stored."""
    values = tensor._values() if tensor.layout is torch.sparse_coo else tensor.values()
    return values.numel()


def _product_flops(sparse: Any, dense: Any, *args: Any, **kwargs: Any) -> int:
    """Both matrices taken as dense, as torch's own formula of a product takes them."""
    return 2 * int(sparse.numel()) * int(dense.shape[1])


def _sum_and_product_flops(added: Any, sparse: Any, dense: Any, *args: Any, **kwargs: Any) -> int:
    return _product_flops(sparse, dense)


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
    aten._sparse_addmm: _sum_and_product_flops,
    aten._sparse_mm_reduce_impl: _product_flops,
    aten.mkldnn_rnn_layer: _lstm_flops,
    aten.mkldnn_rnn_layer_backward: _lstm_backward_flops,
}
