"""What bfloat16 blocks compute by kernels of our own while calibration flows through them."""

from __future__ import annotations

from typing import Any

from torch.nn import functional
from torch.overrides import TorchFunctionMode

from ridgeline.compress.watching.attention import causal
from ridgeline.compress.watching.byte_products import ByteProducts, linear_in_bytes


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
