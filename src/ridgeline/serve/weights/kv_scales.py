"""The scales of keys and values that calibration found, from a compressed-tensors checkpoint.

`config.json` says under `kv_cache_scheme` what they are rounded to, and each attention layer has a
`k_scale` and a `v_scale`: [1], or one per key-value head ([KV], [KV, 1, 1]). Keys are rounded as
they are cached, with rotary embedding applied: value = level · scale.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ridgeline.checkpoints.compressed_tensors import quantisation_of
from ridgeline.checkpoints.files import StoredTensors
from ridgeline.errors import InputError
from ridgeline.serve.cache import STORED, FixedScales, KvForm, KvShape

_KINDS = {"int": STORED["int8"], "float": STORED["fp8"]}


def dtype_of(directory: str, scheme: Mapping[str, Any]) -> torch.dtype:
    """The dtype in which a `kv_cache_scheme` stores keys and values.

    Raises:
        InputError: It is not int8 or fp8 with symmetric scales of calibration.
    """
    kind, bits = scheme.get("type", "int"), scheme.get("num_bits")
    dynamic, symmetric = scheme.get("dynamic", False), scheme.get("symmetric", True)
    if kind not in _KINDS or bits != 8 or dynamic or not symmetric:
        raise InputError(
            f"{directory}: kv_cache_scheme: {bits} bits of type {kind}, dynamic={dynamic}, "
            f"symmetric={symmetric}, are not supported; known are int8 and fp8 with symmetric "
            "scales of calibration; compress without one, and give --kv-dtype"
        )
    return _KINDS[kind]


def calibrated_cache(directory: str, model: nn.Module, shapes: Sequence[KvShape]) -> KvForm | None:
    """How the checkpoint wants keys and values kept; None: it does not say.

    Args:
        directory: Of a compressed-tensors checkpoint.
        model: Read from it; its attention layers know their number (`layer_idx`).
        shapes: Of each layer's cache.

    Raises:
        InputError: Scales are missing or not of the layer's heads, or see `dtype_of`.
    """
    scheme = quantisation_of(directory).get("kv_cache_scheme")
    if not scheme:
        return None
    dtype = dtype_of(directory, scheme)
    tensors = StoredTensors(Path(directory))
    places = {
        int(module.layer_idx): name  # type: ignore[arg-type]
        for name, module in model.named_modules()
        if f"{name}.k_scale" in tensors and hasattr(module, "layer_idx")
    }
    found = []
    for layer, (heads, _) in enumerate(shapes):
        if layer not in places:
            raise InputError(
                f"{directory}: layer {layer} has no k_scale, which config.json's kv_cache_scheme "
                "promises; compress the model again"
            )
        both = (_of_heads(tensors, f"{places[layer]}.{part}_scale", heads) for part in "kv")
        found.append(FixedScales(*both))
    return KvForm(dtype, tuple(found))


def _of_heads(tensors: StoredTensors, name: str, heads: int) -> Tensor:
    """The scale of each head, [KV] float32."""
    scale = tensors.read(name).float().flatten()
    if scale.numel() not in (1, heads) or not bool((scale > 0).all() & scale.isfinite().all()):
        raise InputError(
            f"{tensors.directory}: {name} of {list(scale.shape)} is neither one scale above 0 nor "
            f"one for each of {heads} heads; compress the model again"
        )
    return scale.expand(heads).contiguous()
