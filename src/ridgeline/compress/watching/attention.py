"""What bfloat16 blocks compute by kernels of our own while calibration flows: attention.

PyTorch's own on a CPU multiplies bfloat16 heads in float32 where there is no AMX, at a third of the
speed of `kernels/causal_attention.py`. Only what is plainly causal is handed over: masks, windows
and attention to other keys stay PyTorch's.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from ridgeline.compress.watching.byte_products import ByteProducts, linear_in_bytes
from ridgeline.kernels.causal_attention import causal_attention


class BlockKernels(TorchFunctionMode):
    """Computes plain causal attention, and linear layers in bytes, with our own kernels.

    It is the innermost mode, which is asked first: those around it see what it calls instead.

    Args:
        products: Of linear layers; None: they stay PyTorch's.
    """

    def __init__(self, products: ByteProducts | None) -> None:
        super().__init__()
        self._products = products

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """What torch calls in place of each of its functions."""
        del types
        kwargs = kwargs or {}
        if func is functional.linear and self._products is not None and not kwargs:
            x, weight, *bias = args
            return linear_in_bytes(x, weight, bias[0] if bias else None, self._products)
        attention = func is functional.scaled_dot_product_attention
        result = causal(*args, **kwargs) if attention else None
        return func(*args, **kwargs) if result is None else result


KEYS_AND_VALUES = (functional.scaled_dot_product_attention, torch.ops.ridgeline.paged_attention)
"""What computes attention; keys and values are its second and third argument."""


def causal(*args: Any, **kwargs: Any) -> Tensor | None:
    """What `scaled_dot_product_attention` gives, or None where it is more than plainly causal."""
    return _attention(*args, **kwargs) if _is_plain(*args, **kwargs) else None


def _is_plain(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    **_: Any,
) -> bool:
    return (
        is_causal
        and attn_mask is None
        and dropout_p == 0.0
        and query.ndim == 4
        and {query.dtype, key.dtype, value.dtype} == {torch.bfloat16}
        and query.shape[2:] == key.shape[2:] == value.shape[2:]
        and query.shape[0] == key.shape[0]
        and key.shape == value.shape
        and query.shape[1] % key.shape[1] == 0
    )


def _attention(query: Tensor, key: Tensor, value: Tensor, *_: Any, **kwargs: Any) -> Tensor:
    scale = kwargs.get("scale")
    return causal_attention(
        query, key, value, query.shape[-1] ** -0.5 if scale is None else float(scale)
    )
