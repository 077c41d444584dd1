"""The tensors of a compressed-tensors checkpoint, and how one layer's become a layer of ours.

Weight [out, in], groups G along `in`:

    pack-quantized        weight_packed      int32 [out, in · bits / 32], lowest bits first,
                                             q + 2^(bits−1)
                          weight_shape       int64 [2]
                          weight_zero_point  int32 [out · bits / 32, G], packed along `out`
    int-, float-quantized weight             int8 or float8_e4m3fn [out, in]
                          weight_zero_point  int8 [out, G]
    mxfp4-, nvfp4-packed  weight_packed      uint8 [out, in / 2], two E2M1 codes each
    mxfp4, mxfp8          weight_scale       uint8 exponents (E8M0) [out, in / 32]
    nvfp4                 weight_scale       float8_e4m3fn [out, in / 16], weight_global_scale [1]
    all                   weight_scale       [out, G], [1] for the whole tensor, or one per block
                                             of rows and inputs (FP8_BLOCK)
"""

from __future__ import annotations

import glob
import os
from typing import Any

import torch
from torch import Tensor

from ridgeline.errors import InputError
from ridgeline.kernels.number_formats import fp4, integer, mx
from ridgeline.serve.weights.layers import int4_layer, int8_layer, w8a8_layer
from ridgeline.serve.weights.linears import FrozenLinear
from ridgeline.serve.weights.schemes import Scheme

_FP4 = ("mxfp4-pack-quantized", "nvfp4-pack-quantized")


class Stored:
    """All tensors of a directory's safetensors files, read one by one.

    Raises:
        InputError: There are none, or one is damaged.
    """

    def __init__(self, directory: str) -> None:
        from safetensors import SafetensorError, safe_open

        self.directory = directory
        self._files: dict[str, Any] = {}
        paths = sorted(glob.glob(os.path.join(directory, "*.safetensors")))
        if not paths:
            raise InputError(f"{directory}: there are no *.safetensors files")
        for path in paths:
            try:
                file = safe_open(path, framework="pt")
            except (SafetensorError, OSError) as error:
                raise InputError(
                    f"{path}: damaged or truncated ({error}); fetch it again"
                ) from None
            self._files |= dict.fromkeys(file.keys(), file)
        self._unread = dict.fromkeys(self._files)

    def has(self, name: str) -> bool:
        """Whether there is such a tensor."""
        return name in self._files

    def read(self, name: str) -> Tensor:
        """One tensor.

        Raises:
            InputError: It is not there.
        """
        if name not in self._files:
            raise InputError(f"{self.directory}: {name} is missing")
        self._unread.pop(name, None)
        return self._files[name].get_tensor(name)

    def unread(self) -> list[str]:
        """Names that nobody has read."""
        return list(self._unread)


def linear_from(
    tensors: Stored, name: str, scheme: Scheme, device: torch.device, dtype: torch.dtype
) -> FrozenLinear:
    """The layer of that name, for activations of `dtype`.

    Raises:
        InputError: Tensors are missing, or what they hold is not supported.
    """
    if tensors.has(f"{name}.weight_g_idx"):
        raise InputError(
            f"{tensors.directory}: {name} has reordered groups (actorder: group); "
            "compress it with actorder: static"
        )
    packed = scheme.format == "pack-quantized"
    if packed:
        shape = [int(size) for size in tensors.read(f"{name}.weight_shape")]
        words = tensors.read(f"{name}.weight_packed")
        quantised = integer.unpack(words, scheme.bits, shape[1])
    elif scheme.format in _FP4:
        # Twice an E2M1 number is a whole one, up to 12: int8 levels, and half the scale.
        codes = fp4.unpack(tensors.read(f"{name}.weight_packed"))
        quantised = (2 * fp4.value(codes)).to(torch.int8)
        shape = list(quantised.shape)
    else:
        quantised = tensors.read(f"{name}.weight")
        shape = list(quantised.shape)
    bias = tensors.read(f"{name}.bias") if tensors.has(f"{name}.bias") else None
    inputs = {
        part: tensors.read(f"{name}.{part}")
        for part in ("input_scale", "input_zero_point", "input_global_scale")
        if tensors.has(f"{name}.{part}")
    }
    scales = _per_output(_scales(tensors, name, scheme), shape[0], scheme.rows)
    groups = -(-shape[1] // scheme.group) if scheme.group and scheme.group > 0 else 1
    if scales.shape != (shape[0], groups) or shape[1] % groups:
        raise InputError(
            f"{tensors.directory}: {name} of {shape} has scales of {list(scales.shape)}; whole "
            f"groups of {scheme.group} are supported"
        )
    zeros = None
    if not scheme.symmetric:
        zeros = tensors.read(f"{name}.weight_zero_point")
        if packed and zeros.dtype == torch.int32:
            zeros = integer.unpack(zeros.T, scheme.bits, shape[0]).T
        zeros = _per_output(zeros.to(torch.int8), shape[0], scheme.rows)
    elif tensors.has(f"{name}.weight_zero_point"):
        tensors.read(f"{name}.weight_zero_point")  # all zero where weights are symmetric
    scales, bias = scales.to(device), None if bias is None else bias.to(device)
    zeros = None if zeros is None else zeros.to(device)
    plain = scheme.bits == 8 and groups == 1 and zeros is None
    if scheme.int8_inputs != "wide" and plain and device.type == "cpu":
        step = _step(tensors, name, inputs) if scheme.int8_inputs == "fixed" else None
        return w8a8_layer(quantised, scales, bias, step, dtype)
    # Other activations stay wide here, whatever they were to be rounded to.
    made = int4_layer if scheme.bits <= 4 and scheme.kind == "int" else int8_layer
    return made(quantised.to(device), scales, zeros, bias, dtype)


def _step(tensors: Stored, name: str, inputs: dict[str, Tensor]) -> float:
    """What all activations of a layer are divided by."""
    step = inputs.get("input_scale")
    if step is None or step.numel() != 1 or not 0 < float(step) < float("inf"):
        found = "missing" if step is None else f"of {list(step.shape)}, not one number above 0"
        raise InputError(f"{tensors.directory}: {name}.input_scale is {found}")
    return float(step)


def _scales(tensors: Stored, name: str, scheme: Scheme) -> Tensor:
    """As numbers that levels are multiplied by, in a dtype that kernels take."""
    scales = tensors.read(f"{name}.weight_scale")
    half = 0.5 if scheme.format in _FP4 else 1.0
    if scheme.format.startswith("mx"):
        return (mx.powers_of_two(scales) * half).bfloat16()  # powers of two: nothing is lost
    if scheme.format == "nvfp4-pack-quantized":
        return scales.float() / tensors.read(f"{name}.weight_global_scale") * half
    return scales


def _per_output(values: Tensor, outputs: int, rows: int | None) -> Tensor:
    """One value per tensor or per block of rows, as one per output."""
    if rows is None:
        rows = outputs if values.numel() == 1 else 1
        values = values.reshape(1, 1) if values.numel() == 1 else values
    return values.repeat_interleave(rows, 0)[:outputs]
