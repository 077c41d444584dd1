"""The compressed-tensors format, and reading it tensor by tensor.

transformers, vLLM and `ridgeline serve` load it. Layouts and the fields of `quantization_config`
are those of compressed-tensors 0.20 (`compressors/`, `quantization/quant_args.py`), which write for
one linear layer [out, in], G groups:

    pack-quantized       int                     weight_packed int32 [out, ⌈in · bits / 32⌉],
                                                 weight_scale [out, G], weight_shape int64 [2],
                                                 weight_zero_point int32, packed along `out`
    int-quantized        int, activations too     weight int8, weight_scale [out, G],
                                                 weight_zero_point int8 [out, G]
    naive-quantized      fp8                     weight float8_e4m3fn, weight_scale [out, G]
    float-quantized      fp8, activations too     the same
    mxfp8-quantized      mxfp8                   weight float8_e4m3fn, weight_scale uint8 [out, G]
    mxfp4-pack-quantized mxfp4                   weight_packed uint8 [out, in / 2],
                                                 weight_scale uint8 [out, in / 32]
    nvfp4-pack-quantized nvfp4                   weight_packed, weight_scale float8_e4m3fn
                                                 [out, in / 16], weight_global_scale float32 [1]

A scale of the whole tensor has the shape [1], those of blocks (FP8_BLOCK, read alone) one for each
block of rows and inputs. Static ranges of activations add input_scale [1] (and input_zero_point,
input_global_scale), those of a KV cache k_scale and v_scale [1]. `config_groups` name layers by
class, by name, or by "re:" and an expression, with one scheme each. Codebooks have a format of
their own (`aqlm.py`) and come through the same readers.

`compressed_writer.py` writes it. compressed-tensors' own reader makes transformers' modules, which
multiply by dequantised copies, and its writer wants the whole model in memory; neither serves here
(docs/decisions/0016-what-stays-our-own.md).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ridgeline.checkpoints import aqlm
from ridgeline.checkpoints.files import CheckpointFiles, StoredTensors
from ridgeline.checkpoints.quantised import ActivationScales, Quantised
from ridgeline.errors import InputError
from ridgeline.kernels.number_formats import fp4, integer
from ridgeline.models.folder import read_by_library
from ridgeline.records.input_file import read_json
from ridgeline.records.scheme import NumberFormat

_METHODS = ("compressed-tensors", aqlm.LAYOUT)
"""Values of `quant_method` that are read."""
WEIGHT_PARTS = (
    "weight",
    "weight_packed",
    "weight_scale",
    "weight_shape",
    "weight_zero_point",
    "weight_global_scale",
    "weight_g_idx",
    *aqlm.PARTS,
)
"""Last parts of the names of a quantised weight's tensors."""
ACTIVATION_PARTS = {
    "scale": "input_scale",
    "zero": "input_zero_point",
    "global_scale": "input_global_scale",
}
"""Tensors of a layer's activations, by the field of `ActivationScales`."""
CACHE_PARTS = ("k_scale", "v_scale", "k_zero_point", "v_zero_point")
"""Last parts of the names of an attention layer's own tensors."""
_KINDS = {
    "naive-quantized": "fp8_e4m3",
    "float-quantized": "fp8_e4m3",
    "mxfp4-pack-quantized": "mxfp4",
    "mxfp8-quantized": "mxfp8",
    "nvfp4-pack-quantized": "nvfp4",
}
"""Layout to what it holds as floats."""
_INTEGERS = ("pack-quantized", "int-quantized", "naive-quantized")
"""Layouts that hold integers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerFormat:
    """How `quantization_config` says that a linear layer is stored."""

    where: str
    """The directory and the group, for messages."""
    layout: str
    weights: NumberFormat
    block_rows: int | None = None
    """Outputs that share a scale, where scales are for blocks."""
    activations: Mapping[str, Any]
    """`input_activations` as it stands there; empty: they stay as they are."""

    @property
    def activation_format(self) -> NumberFormat | None:
        """What activations are quantised to; None: they stay as they are.

        Raises:
            InputError: It is none that is known here.
        """
        about = self.activations
        if not about:
            return None
        floats = {(4, 32): "mxfp4", (4, 16): "nvfp4", (8, 32): "mxfp8", (8, None): "fp8_e4m3"}
        kind: Any = floats.get((about["num_bits"], about.get("group_size")))
        if about["type"] == "int":
            kind = "int" if about.get("group_size") is None else None
        if kind is None:
            raise InputError(f"{self.where}: activations are quantised in a way not known here")
        share: Any = {"tensor_group": "group"}.get(about["strategy"], about["strategy"])
        return NumberFormat(
            kind=kind,
            bits=about["num_bits"],
            symmetric=about["symmetric"],
            share=share,
            group=about.get("group_size"),
            dynamic=bool(about["dynamic"]),
        )


@dataclass(frozen=True, slots=True)
class QuantisedLayers:
    """Which linear layers of a checkpoint are quantised, and how."""

    groups: tuple[tuple[tuple[str, ...], LayerFormat], ...]
    ignored: tuple[str, ...]

    def of(self, layer: str) -> LayerFormat | None:
        """The format of the linear layer of that name; None: it is not quantised."""
        if any(_matches(target, layer) for target in self.ignored):
            return None
        for targets, found in self.groups:
            if any(_matches(target, layer) for target in targets):
                return found
        return None


def _matches(target: str, layer: str) -> bool:
    """Whether a target means this layer; only linear layers are asked for."""
    if target.startswith("re:"):
        return re.match(target[3:], layer) is not None
    return target in {"Linear", layer}


def quantisation_of(directory: str | Path) -> dict[str, Any]:
    """The `quantization_config` of a checkpoint that is read here; empty: it has none.

    Raises:
        InputError: config.json cannot be read.
    """
    path = Path(directory) / "config.json"
    if not path.is_file():
        return {}  # a hub id
    about = read_json(path, dict[str, Any]).get("quantization_config")
    if isinstance(about, dict) and about.get("quant_method") in _METHODS:
        return about
    return {}


def quantised_layers(directory: str | Path, about: Mapping[str, Any]) -> QuantisedLayers:
    """Read and check what a `quantization_config` says of linear layers.

    Raises:
        InputError: It asks for something that is not known here.
    """
    with read_by_library(directory, what="its quantization_config"):
        if about.get("quant_method") == aqlm.LAYOUT:
            form = aqlm.format_of(directory, about)
            every = LayerFormat(
                where=str(directory), layout=aqlm.LAYOUT, weights=form, activations={}
            )
            return QuantisedLayers(((("Linear",), every),), aqlm.dense_layers(about))
        if about.get("transform_config"):
            raise InputError(
                f"{directory}: transform_config: rotated weights are not supported; compress the "
                "model without it"
            )
        sparsity = about.get("sparsity_config") or {}
        if sparsity.get("format", "dense") != "dense":
            raise InputError(
                f"{directory}: sparsity_config {sparsity['format']!r}: sparse weights are not "
                "supported; save the model dense"
            )
        groups = tuple(
            (tuple(group["targets"]), _layer_format(f"{directory}: {name}", group, about))
            for name, group in (about.get("config_groups") or {}).items()
        )
        return QuantisedLayers(groups, tuple(about.get("ignore") or ()))


def _layer_format(where: str, group: Mapping[str, Any], about: Mapping[str, Any]) -> LayerFormat:
    layout: Any = group.get("format") or about.get("format")
    weights = group.get("weights") or {}
    if layout not in {*_INTEGERS, *_KINDS}:
        known = ", ".join(dict.fromkeys((*_INTEGERS, *_KINDS)))
        raise InputError(f"{where}: format {layout!r} is not supported; known are {known}")
    bits: Any = weights.get("num_bits")
    kind = weights.get("type")
    held: Any = _KINDS.get(layout) if kind == "float" else None
    if kind == "int" and layout in _INTEGERS and bits in range(2, 9):
        held = "int"
    if held is None or (held != "int" and bits != (4 if held.endswith("fp4") else 8)):
        raise InputError(
            f"{where}: {bits} bits of type {kind} as {layout} are not supported; known are int2 to "
            "int8, fp8, mxfp4, mxfp8 and nvfp4"
        )
    if group.get("output_activations"):
        raise InputError(f"{where}: output_activations are not supported")
    block = weights.get("block_structure")
    width = block[1] if block else weights.get("group_size")
    share: Any = "tensor" if weights.get("strategy") == "tensor" else "channel"
    if width is not None and width > 0:
        share = "group"
    return LayerFormat(
        where=where,
        layout=layout,
        weights=NumberFormat(
            kind=held,
            bits=bits,
            symmetric=bool(weights.get("symmetric", True)),
            share=share,
            group=width if share == "group" else None,
        ),
        block_rows=block[0] if block else None,
        activations=group.get("input_activations") or {},
    )


def read_weight(tensors: StoredTensors, layer: str, found: LayerFormat) -> Quantised:
    """Read the weight of one linear layer in its levels.

    Raises:
        InputError: Tensors are missing, do not fit, or hold what is not supported.
    """
    if f"{layer}.weight_g_idx" in tensors:
        raise InputError(
            f"{tensors.directory}: {layer} has reordered groups (actorder: group); "
            "compress it with actorder: static"
        )
    form = found.weights
    if found.layout == aqlm.LAYOUT:
        return aqlm.read(tensors, layer, form)
    if found.layout == "pack-quantized":
        depth = int(tensors.read(f"{layer}.weight_shape")[1])
        levels = integer.unpack(tensors.read(f"{layer}.weight_packed"), form.bits, depth)
    elif form.kind in {"mxfp4", "nvfp4"}:
        levels = fp4.unpack(tensors.read(f"{layer}.weight_packed"))
    else:
        levels = tensors.read(f"{layer}.weight")
    outputs, depth = levels.shape
    rows = found.block_rows
    scales = _by_row(tensors.read(f"{layer}.weight_scale"), outputs, rows)
    groups = -(-depth // form.group) if form.group else 1
    if scales.shape not in {(outputs, groups), (1, 1)} or depth % groups:
        raise InputError(
            f"{tensors.directory}: {layer} of {[outputs, depth]} has scales of "
            f"{list(scales.shape)}; whole groups of {form.group} are supported"
        )
    zeros, whole = None, f"{layer}.weight_global_scale"
    if not form.symmetric:
        zeros = tensors.read(f"{layer}.weight_zero_point")
        if found.layout == "pack-quantized" and zeros.dtype == torch.int32:
            zeros = integer.unpack(zeros.T.contiguous(), form.bits, outputs).T
        zeros = _by_row(zeros.to(torch.int8), outputs, rows)
    return Quantised(
        format=form,
        levels=levels,
        scales=scales,
        zeros=zeros,
        global_scale=tensors.read(whole) if form.kind == "nvfp4" else None,
    )


def _by_row(values: Tensor, outputs: int, block_rows: int | None) -> Tensor:
    """One value for each output and group, [1, 1] for a whole tensor."""
    if values.numel() == 1:
        return values.reshape(1, 1)
    return values if block_rows is None else values.repeat_interleave(block_rows, 0)[:outputs]


class WeightReader:
    """The weights of a directory, dense or compressed, by their names in the uncompressed model.

    Raises:
        InputError: The directory cannot be read, or is compressed in another format.
    """

    def __init__(self, path: Path) -> None:
        self.directory = path
        self.tensors = CheckpointFiles(path)
        self.config = self.tensors.config
        about: dict[str, Any] = self.config.get("quantization_config") or {}
        method = about.get("quant_method", "compressed-tensors")
        if method not in _METHODS:
            raise InputError(
                f"{path}: compressed by {method!r}; {' and '.join(_METHODS)} are read here"
            )
        self.layers = quantised_layers(path, about)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all weights, biases …, each once, in the order of the files."""
        found: dict[str, None] = {}
        for name in self.tensors.names:
            layer, _, part = name.rpartition(".")
            if part in WEIGHT_PARTS and self.is_quantised(layer):
                found[f"{layer}.weight"] = None
            elif part not in {*ACTIVATION_PARTS.values(), *CACHE_PARTS}:
                found[name] = None
        return tuple(found)

    def read(self, name: str) -> Tensor | Quantised:
        """Read one of `names`: a tensor as it is stored, or a weight in its levels."""
        layer = name.removesuffix(".weight")
        if not self.is_quantised(layer):
            return self.tensors.read(name)
        return read_weight(self.tensors, layer, self.format_of(layer))

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of one of `names`, unpacked; the weight itself is not read."""
        layer = name.removesuffix(".weight")
        if name in self.tensors:
            return self.tensors.shape(name)
        if f"{layer}.weight_shape" in self.tensors:
            rows, columns = self.tensors.read(f"{layer}.weight_shape").tolist()
            return rows, columns
        if f"{layer}.codes" in self.tensors:
            rows, groups, _ = self.tensors.shape(f"{layer}.codes")
            return rows, groups * self.tensors.shape(f"{layer}.codebooks")[3]
        rows, octets = self.tensors.shape(f"{layer}.weight_packed")  # two codes in each
        return rows, 2 * octets

    def is_quantised(self, layer: str) -> bool:
        """Whether the layer of that name is stored compressed."""
        parts = ("weight_scale", "weight_packed", "codes")
        return any(f"{layer}.{part}" in self.tensors for part in parts)

    def activations(self, layer: str) -> ActivationScales | None:
        """What the activations of a quantised layer become; None: they stay as they are."""
        form = self.format_of(layer).activation_format
        if form is None:
            return None
        found = {
            field: self.tensors.read(f"{layer}.{part}")
            for field, part in ACTIVATION_PARTS.items()
            if f"{layer}.{part}" in self.tensors
        }
        return ActivationScales(format=form, **found)

    def format_of(self, layer: str) -> LayerFormat:
        """How a quantised layer is stored."""
        found = self.layers.of(layer)
        if found is None:
            raise InputError(
                f"{self.directory}: {layer} is quantised, but no group of quantization_config is "
                "for it"
            )
        return found
