"""What training operators ask of their tensors before anything runs.

Kernels trust what they are given: a number that is no float, or a tensor of another device, would
be read as what it is not. So it is refused here, in one line.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from ridgeline.errors import InputError


def wide(dtype: torch.dtype) -> torch.dtype:
    """The dtype that results are summed in: float64 stays, all else is float32."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def check_floats(operator: str, **tensors: Tensor | None) -> None:
    """Refuse what is no float of one device, and derivatives that are carried forward.

    Raises:
        InputError: It names the operator and the tensor.
    """
    first = next(iter(tensors.values()))
    for name, tensor in tensors.items():
        if tensor is None:
            continue
        if not tensor.is_floating_point() or tensor.itemsize == 1:
            dtype = str(tensor.dtype).removeprefix("torch.")
            raise InputError(f"{name} of {operator} is {dtype}; give a float of 16 bits or more")
        if first is not None and tensor.device != first.device:
            raise InputError(
                f"{operator} got {name} on {tensor.device} and others on {first.device}; move it"
            )
        if not torch.compiler.is_compiling() and _carries_tangent(tensor):
            raise InputError(
                f"{operator} has no forward-mode derivative; take torch.func.vjp, or detach {name}"
            )


def _carries_tangent(tensor: Tensor) -> bool:
    return forward_ad.unpack_dual(tensor).tangent is not None


def check_softcap(softcap: float | None) -> None:
    """Refuse a cap that is not above zero.

    Raises:
        InputError: It says what to give.
    """
    if softcap is not None and not softcap > 0:
        raise InputError(f"a softcap of {softcap}; give a number above 0, or None")


def in_dtype_of_autocast(*tensors: Tensor | None) -> tuple[Any, ...]:
    """The tensors as a matmul would take them: in autocast's dtype where it is on."""
    device = next(one.device.type for one in tensors if one is not None)
    if device == "meta" or not torch.is_autocast_enabled(device):
        return tensors
    dtype = torch.get_autocast_dtype(device)
    return tuple(
        one if one is None or one.dtype == torch.float64 else one.to(dtype) for one in tensors
    )


def refuse_second_derivatives(backward: str, library: Any) -> None:
    """Let whoever differentiates an operator's backward hear that nothing is known of it.

    Without this PyTorch warns, and counts that part of the derivative as zero.
    """
    operator = backward.removesuffix("_backward").removesuffix("_dweight")

    def differentiate(_ctx: Any, *_upper: Any) -> Any:
        raise InputError(no_second_derivative(operator))

    torch.library.register_autograd(f"ridgeline::{backward}", differentiate, lib=library)


def no_second_derivative(operator: str) -> str:
    """The sentence about a derivative of a gradient."""
    return (
        f"{operator} has first derivatives alone; compute what you differentiate twice step by"
        " step in PyTorch"
    )
