"""Which layers of a compressed-tensors checkpoint are quantised, and how.

`config.json` names groups of layers (by class, by name, or by "re:" and an expression) with one
scheme each, and layers to ignore. Facts of the format as llm-compressor 0.14 writes it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal, get_args

from ridgeline.errors import InputError

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
    dynamic_int8: bool
    """Activations are quantised to int8 per token."""


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


def schemes_of(directory: str, about: Any) -> Schemes:
    """Read and check a `quantization_config`.

    Raises:
        InputError: It asks for something that is not done here.
    """
    about = about if isinstance(about, dict) else about.to_dict()
    # transformers wraps the dictionary in a class that keeps it one level down.
    about = about.get("quantization_config") or about
    for field, what in (
        ("kv_cache_scheme", "a quantised KV cache is chosen by --kv-dtype here"),
        ("transform_config", "rotated weights are not supported"),
    ):
        if about.get(field):
            raise InputError(f"{directory}: {field}: {what}; compress the model without it")
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
    if inputs and kind == "int" and not (inputs.get("num_bits") == 8 and inputs.get("dynamic")):
        raise InputError(
            f"{where}: input_activations of {inputs.get('num_bits')} bits, dynamic="
            f"{inputs.get('dynamic')}, are not supported; known are 8 bits per token, dynamic"
        )
    block = weights.get("block_structure")
    return Scheme(
        format=layout,
        bits=bits,
        kind=kind,
        symmetric=bool(weights.get("symmetric", True)),
        group=block[1] if block else weights.get("group_size"),
        rows=block[0] if block else None,
        dynamic_int8=bool(inputs) and kind == "int",
    )


def _matches(target: str, name: str) -> bool:
    """Only linear layers are asked for."""
    if target.startswith("re:"):
        return re.match(target[3:], name) is not None
    return target in {"Linear", name}
