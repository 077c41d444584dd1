"""The tensors of a saved directory, dense or compressed, to write them in another format."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from torch import Tensor

from ridgeline.compress.quantised import Inputs, Quantised
from ridgeline.compress.saved.reading import format_of, quantised_from
from ridgeline.compress.streaming.checkpoint import Checkpoint
from ridgeline.errors import InputError
from ridgeline.records.scheme import NumberFormat

_WEIGHT_PARTS = (
    "weight",
    "weight_packed",
    "weight_scale",
    "weight_shape",
    "weight_zero_point",
    "weight_global_scale",
)
_OTHER_PARTS = ("input_scale", "input_zero_point", "input_global_scale", "k_scale", "v_scale")


class Directory:
    """Weights under the names of the uncompressed model.

    Raises:
        InputError: As `Checkpoint`, or a compression that is not compressed-tensors.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._checkpoint = Checkpoint(path)
        self.config = self._checkpoint.config
        self._about: dict[str, Any] = self.config.get("quantization_config") or {}
        self._stored = frozenset(self._checkpoint.names)
        method = self._about.get("quant_method", "compressed-tensors")
        if method != "compressed-tensors":
            raise InputError(f"{path}: compressed by {method!r}; compressed-tensors is read here")

    @property
    def names(self) -> tuple[str, ...]:
        """Of all weights, biases …, each once, in the order of the files."""
        found: dict[str, None] = {}
        for name in self._checkpoint.names:
            layer, _, part = name.rpartition(".")
            if f"{layer}.weight_scale" in self._stored and part in _WEIGHT_PARTS:
                found[f"{layer}.weight"] = None
            elif part not in _OTHER_PARTS:
                found[name] = None
        return tuple(found)

    def read(self, name: str) -> Tensor | Quantised:
        """One of `names`: a tensor as it is stored, or a weight in its levels."""
        layer = name.removesuffix(".weight")
        if f"{layer}.weight_scale" not in self._stored:
            return self._checkpoint.read(name)
        parts = {
            part: self._checkpoint.read(f"{layer}.{part}")
            for part in _WEIGHT_PARTS
            if f"{layer}.{part}" in self._stored
        }
        return quantised_from(parts, format_of(self._group(layer), self._about.get("format", "")))

    def shape(self, name: str) -> tuple[int, ...]:
        """Of one of `names`, unpacked; the weight itself is not read."""
        layer = name.removesuffix(".weight")
        if name in self._stored:
            return self._checkpoint.shape(name)
        if f"{layer}.weight_shape" in self._stored:
            rows, columns = self._checkpoint.read(f"{layer}.weight_shape").tolist()
            return rows, columns
        rows, octets = self._checkpoint.shape(f"{layer}.weight_packed")  # two codes in each
        return rows, 2 * octets

    def inputs(self, layer: str) -> Inputs | None:
        """What the inputs of a quantised layer are rounded to; None: they stay as they are."""
        about = self._group(layer).get("input_activations")
        if not about:
            return None
        kinds: dict[Any, Any] = {
            ("float", 4, 32): "mxfp4",
            ("float", 4, 16): "nvfp4",
            ("float", 8, 32): "mxfp8",
            ("float", 8, None): "fp8_e4m3",
            ("int", about["num_bits"], None): "int",
        }
        kind = kinds.get((about["type"], about["num_bits"], about.get("group_size")))
        if kind is None:
            raise InputError(f"{self.path}: {layer} rounds its inputs in a way not known here")
        share: Any = {"tensor_group": "group"}.get(about["strategy"], about["strategy"])
        form = NumberFormat(
            kind=kind,
            bits=about["num_bits"],
            symmetric=about["symmetric"],
            share=share,
            group=about.get("group_size"),
            dynamic=bool(about["dynamic"]),
        )
        scale, zero, whole = (
            self._checkpoint.read(f"{layer}.{part}") if f"{layer}.{part}" in self._stored else None
            for part in ("input_scale", "input_zero_point", "input_global_scale")
        )
        return Inputs(format=form, scale=scale, zero=zero, global_scale=whole)

    def _group(self, layer: str) -> dict[str, Any]:
        for group in (self._about.get("config_groups") or {}).values():
            for target in group["targets"]:
                by_pattern = target.startswith("re:") and re.match(target[3:], layer)
                if by_pattern or target in {"Linear", layer}:
                    return dict(group)
        raise InputError(
            f"{self.path}: {layer} is quantised, but no group of quantization_config is for it"
        )
