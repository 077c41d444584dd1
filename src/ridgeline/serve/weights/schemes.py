"""Which layers of a compressed-tensors checkpoint are quantised, and how.

`config.json` names groups of layers (by class, by name, or by "re:" and an expression) with one
scheme each, and layers to ignore. Facts of the format as llm-compressor 0.14 writes it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from ridgeline.errors import InputError
from ridgeline.models.folder import read_by_library
from ridgeline.records.input_file import read_json

Layout = Literal[
    "pack-quantized",
    "int-quantized",
    "float-quantized",
    "naive-quantized",
    "mxfp4-pack-quantized",
    "mxfp8-quantized",
    "nvfp4-pack-quantized",
]
FORMATS: tuple[str, ...] = get_args(Layout)
_INTEGERS = {
    (layout, "int", bits)
    for layout in ("pack-quantized", "int-quantized", "naive-quantized")
    for bits in range(2, 9)
}
_FLOATS = {
    ("float-quantized", "float", 8),
    ("naive-quantized", "float", 8),
    ("mxfp4-pack-quantized", "float", 4),
    ("mxfp8-quantized", "float", 8),
    ("nvfp4-pack-quantized", "float", 4),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheme:
    """Of one layer."""

    format: Layout
    bits: int
    kind: Literal["int", "float"]
    symmetric: bool
    group: int | None
    """Weights along the depth that share a scale; None: all."""
    rows: int | None
    """Outputs that share a scale, where scales are for blocks."""
    int8_inputs: Literal["wide", "by token", "fixed"]
    """Whether activations are rounded to int8 too, and by whose scale."""


@dataclass(frozen=True, slots=True)
class Schemes:
    """Of a checkpoint."""

    groups: tuple[tuple[tuple[str, ...], Scheme], ...]
    ignored: tuple[str, ...]

    def of(self, name: str) -> Scheme | None:
        """The scheme of the linear layer of that name; None: it is not quantised."""
        if any(_matches(target, name) for target in self.ignored):
            return None
        for targets, scheme in self.groups:
            if any(_matches(target, name) for target in targets):
                return scheme
        return None


def described(directory: str) -> dict[str, Any]:
    """The `quantization_config` of a compressed-tensors checkpoint; empty: it is none.

    Raises:
        InputError: config.json cannot be read.
    """
    path = Path(directory) / "config.json"
    if not path.is_file():
        return {}  # a hub id
    about = read_json(path, dict[str, Any]).get("quantization_config")
    if isinstance(about, dict) and about.get("quant_method") == "compressed-tensors":
        return about
    return {}


def schemes_of(directory: str) -> Schemes:
    """Read and check what a checkpoint's `quantization_config` says of its linear layers.

    Raises:
        InputError: It asks for something that is not done here.
    """
    with read_by_library(directory, what="its quantization_config"):
        return _schemes_of(directory, described(directory))


def _schemes_of(directory: str, about: dict[str, Any]) -> Schemes:
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
        (tuple(group["targets"]), _scheme(f"{directory}: {name}", group, about.get("format")))
        for name, group in about["config_groups"].items()
    )
    return Schemes(groups, tuple(about.get("ignore") or ()))


def _scheme(where: str, group: dict[str, Any], default_format: str | None) -> Scheme:
    layout: Any = group.get("format") or default_format
    weights, inputs = group.get("weights") or {}, group.get("input_activations") or {}
    if layout not in FORMATS:
        raise InputError(
            f"{where}: format {layout!r} is not supported; known are {', '.join(FORMATS)}"
        )
    bits: Any = weights.get("num_bits")
    kind: Any = weights.get("type")
    if (layout, kind, bits) not in _INTEGERS | _FLOATS:
        raise InputError(
            f"{where}: {bits} bits of type {kind} as {layout} are not supported; known are int2 to "
            "int8, fp8, mxfp4, mxfp8 and nvfp4"
        )
    if group.get("output_activations"):
        raise InputError(f"{where}: output_activations are not supported")
    block = weights.get("block_structure")
    return Scheme(
        format=layout,
        bits=bits,
        kind=kind,
        symmetric=bool(weights.get("symmetric", True)),
        group=block[1] if block else weights.get("group_size"),
        rows=block[0] if block else None,
        int8_inputs=_int8_inputs(where, inputs) if kind == "int" else "wide",
    )


def _int8_inputs(where: str, inputs: dict[str, Any]) -> Literal["wide", "by token", "fixed"]:
    """What integer weights are multiplied by."""
    if not inputs:
        return "wide"
    share, dynamic = inputs.get("strategy", "token"), bool(inputs.get("dynamic"))
    known = {("token", True): "by token", ("tensor", False): "fixed"}
    found: Any = known.get((share, dynamic))
    plain = inputs.get("num_bits") == 8 and inputs.get("type", "int") == "int"
    if found is None or not plain or not inputs.get("symmetric", True):
        raise InputError(
            f"{where}: input_activations of {inputs.get('num_bits')} bits, a scale per {share}, "
            f"dynamic={dynamic}, symmetric={inputs.get('symmetric', True)}, are not supported; "
            "known are symmetric 8-bit integers, dynamic per token or static per tensor"
        )
    return found  # type: ignore[no-any-return]


def _matches(target: str, name: str) -> bool:
    """Only linear layers are asked for."""
    if target.startswith("re:"):
        return re.match(target[3:], name) is not None
    return target in {"Linear", name}
