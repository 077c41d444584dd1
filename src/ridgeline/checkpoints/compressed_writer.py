"""A model directory written in the compressed-tensors format, or with codebooks in AQLM's."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ridgeline.checkpoints import aqlm
from ridgeline.checkpoints.compressed_tensors import ACTIVATION_PARTS
from ridgeline.checkpoints.quantised import ActivationScales, Quantised
from ridgeline.checkpoints.writing import (
    LIMIT_BYTES,
    Shards,
    copy_companions,
    move_into_place,
    open_aside,
    write_config,
)
from ridgeline.errors import InputError
from ridgeline.kernels.number_formats import fp4, integer
from ridgeline.records.scheme import NumberFormat, Scheme

VERSION = "0.20.0"
"""The version of the format that is written."""


def check_scheme(scheme: Scheme) -> None:
    """Refuse what this format cannot hold, before any work is done.

    Raises:
        InputError: E5M2 weights or activations.
    """
    for form in (scheme.weights, scheme.activations):
        if form is not None and form.kind == "fp8_e5m2":
            raise InputError(
                f"scheme {scheme.name!r}: compressed-tensors has no E5M2; it can be evaluated but "
                "not saved, so choose fp8 or fp8a16"
            )


def check_together(schemes: Iterable[Scheme]) -> None:
    """Refuse what cannot be read where layers differ in their scheme, before any work is done.

    Raises:
        InputError: Codebooks beside anything else. Weights with packed zero points beside others:
            transformers 5.23 reads packed zero points only with `dequantize`, and that only where
            all layers have one format.
    """
    schemes = tuple(schemes)
    books = [one for one in schemes if one.weights is not None and one.weights.kind == "codebook"]
    if books and len({one.weights for one in schemes} - {None}) > 1:
        raise InputError(
            f"scheme {books[0].name!r}: a file of codebooks has one format for all layers; take it "
            "alone"
        )
    if books and any(one.pruning or one.kv for one in schemes):
        raise InputError(
            f"scheme {books[0].name!r}: sums of codebook entries keep no weight at zero, and their "
            "file has no place for a cache's scales; take it alone, or quantise to integers"
        )
    forms = {(one.weights, one.activations): one for one in schemes if one.weights is not None}
    packed = [
        one
        for (weights, activations), one in forms.items()
        if weights.kind == "int" and not weights.symmetric and activations is None
    ]
    if len(forms) > 1 and packed:
        raise InputError(
            f"scheme {packed[0].name!r}: its zero points cannot be read by transformers where other"
            " layers are rounded otherwise; take it alone, or a symmetric scheme"
        )


class CompressedWriter:
    """Writes aside (`.NAME.saving` next to `out_dir`) and renames at the end.

    What an interrupted writer left is thrown away by the next one.
    """

    def __init__(
        self,
        out_dir: Path,
        config: dict[str, Any],
        *,
        source: Path,
        linears: Mapping[str, str],
        kv: NumberFormat | None = None,
        read_packed: bool = True,
        limit_bytes: int = LIMIT_BYTES,
    ) -> None:
        """Begin to write a directory.

        Args:
            out_dir: Must not exist, or be empty.
            config: The model's `config.json`, as it is to be written (sizes of a pruned model).
            source: The model that is compressed: tokenizer and generation config are copied.
            linears: The stored name of each of the model's linear layers, by its module's: they
                differ where transformers renames what it reads (what is not quantised is listed
                under `ignore`, by both).
            kv: What keys and values are rounded to.
            read_packed: Whether transformers can read the family's layers without unpacking them.
            limit_bytes: Of a shard.

        Raises:
            InputError: There is something at `out_dir`.
        """
        self._aside = open_aside(out_dir)
        self._out_dir, self._source, self._kv = out_dir, source, kv
        self._config, self._read_packed = config, read_packed
        self._linears = dict(linears)
        self._groups: dict[tuple[NumberFormat, NumberFormat | None], list[str]] = {}
        self._shards = Shards(self._aside, limit_bytes)

    def dense(self, name: str, tensor: Tensor) -> None:
        """Write a tensor as it is, e.g. `model.norm.weight`."""
        self._shards.add(name, tensor)

    def quantised(
        self, name: str, weight: Quantised, activations: ActivationScales | None = None
    ) -> None:
        """Write the weight of the layer `name` (without `.weight`), and what activations become."""
        forms = (weight.format, activations.format if activations else None)
        self._groups.setdefault(forms, []).append(name)
        for part, tensor in tensors_of(weight, activations).items():
            self._shards.add(f"{name}.{part}", tensor)

    def cache(self, attention: str, keys: ActivationScales, values: ActivationScales) -> None:
        """Write the scales of an attention layer's cache, e.g. `model.layers.0.self_attn`."""
        for part, activations in (("k", keys), ("v", values)):
            assert activations.scale is not None
            self._shards.add(f"{attention}.{part}_scale", activations.scale)
            if activations.zero is not None:
                self._shards.add(f"{attention}.{part}_zero_point", activations.zero)

    def close(self) -> int:
        """Write `config.json` and the rest, move it all to its place, give the tensors' bytes."""
        num_bytes = self._shards.close()
        config = dict(self._config)
        config.pop("quantization_config", None)
        if self._groups or self._kv:
            config |= self._quantised_config()
        write_config(self._aside, config)
        copy_companions(self._source, self._aside)
        move_into_place(self._aside, self._out_dir)
        return num_bytes

    def _by_both_names(self, stored: Iterable[str]) -> list[str]:
        """Layers as the files name them, and as transformers' modules do."""
        modules: dict[str, list[str]] = defaultdict(list)
        for module, name in self._linears.items():
            modules[name].append(module)
        both = [name for of_files in stored for name in (of_files, *modules[of_files])]
        return list(dict.fromkeys(both))

    def _quantised_config(self) -> dict[str, Any]:
        """What `config.json` says more, or otherwise, of a quantised model."""
        quantised = {name for names in self._groups.values() for name in names}
        dense = self._by_both_names(
            stored for stored in self._linears.values() if stored not in quantised
        )
        if any(form.kind == "codebook" for form, _ in self._groups):
            forms = (form for form, _ in self._groups)
            return {"quantization_config": aqlm.described(forms, dense)}
        groups = {}
        # transformers reads experts, which are no layers there, by the first group (5.23).
        layers = set(self._linears.values())
        in_order = sorted(self._groups.items(), key=lambda group: layers.issuperset(group[1]))
        for number, ((weights, activations), names) in enumerate(in_order):
            groups[f"group_{number}"] = {
                "targets": ["Linear"] if len(self._groups) == 1 else self._by_both_names(names),
                "weights": described(weights),
                "input_activations": described(activations) if activations else None,
                "output_activations": None,
                "format": layout(weights, activations),
            }
        layouts = {group["format"] for group in groups.values()}
        about: dict[str, Any] = {
            "quant_method": "compressed-tensors",
            "version": VERSION,
            "quantization_status": "compressed",
            "format": layouts.pop() if len(layouts) == 1 else "mixed-precision",
            "config_groups": groups,
            "ignore": dense,
            "kv_cache_scheme": described(self._kv) if self._kv else None,
            "global_compression_ratio": None,
            "sparsity_config": {},
            "transform_config": {},
        }
        changes: dict[str, Any] = {"quantization_config": about}
        wide = (self._config.get("dtype") or self._config.get("torch_dtype")) == "float32"
        for weights, activations in self._groups:
            blocks = weights.kind in {"mxfp4", "mxfp8", "nvfp4"}
            # What transformers 5.23 with compressed-tensors 0.20 does otherwise: packed zero points
            # are refused as of the wrong shape, and blocks become bfloat16 in a float32 model. It
            # reads a model of several formats as if all layers had the first one's.
            alone = activations is None and len(self._groups) == 1
            unpacked = not self._read_packed or not weights.symmetric or (blocks and wide)
            if alone and unpacked:
                about["dequantize"] = True
            elif blocks and wide:
                changes["dtype"] = "bfloat16"
        return changes


def tensors_of(weight: Quantised, activations: ActivationScales | None = None) -> dict[str, Tensor]:
    """The tensors of one linear layer, by the last part of their names."""
    if weight.books is not None:
        return aqlm.tensors_of(weight)
    if weight.order is not None:
        raise InputError(
            "columns in groups of their own order cannot be saved (compressed-tensors dropped "
            "them); group them in rows"
        )
    form, how = weight.format, layout(weight.format, activations.format if activations else None)
    scales, zeros = weight.scales, weight.zeros
    if form.share == "tensor":
        scales, zeros = scales.reshape(1), None if zeros is None else zeros.reshape(1)
    tensors = {"weight_scale": scales}
    if how == "pack-quantized":
        tensors["weight_packed"] = integer.pack(weight.levels, form.bits)
        tensors["weight_shape"] = torch.tensor(weight.levels.shape)
        if zeros is not None and form.share != "tensor":
            zeros = integer.pack(zeros.T, form.bits).T.contiguous()
    elif form.kind in {"mxfp4", "nvfp4"}:
        tensors["weight_packed"] = fp4.pack(weight.levels)
    else:
        tensors["weight"] = weight.levels
    if zeros is not None:
        tensors["weight_zero_point"] = zeros
    if weight.global_scale is not None:
        tensors["weight_global_scale"] = weight.global_scale
    for field, name in ACTIVATION_PARTS.items() if activations is not None else ():
        tensor = getattr(activations, field)
        if tensor is not None:
            tensors[name] = tensor
    return tensors


def layout(weights: NumberFormat, activations: NumberFormat | None) -> str:
    """compressed-tensors' name of how the tensors of a layer lie."""
    if weights.kind == "int":
        return "pack-quantized" if activations is None else "int-quantized"
    if weights.kind == "fp8_e4m3":
        return "naive-quantized" if activations is None else "float-quantized"
    return {
        "mxfp4": "mxfp4-pack-quantized",
        "mxfp8": "mxfp8-quantized",
        "nvfp4": "nvfp4-pack-quantized",
    }[weights.kind]


def described(form: NumberFormat) -> dict[str, Any]:
    """A number format as compressed-tensors' `QuantizationArgs`."""
    scale_dtype = {"mxfp4": "torch.uint8", "mxfp8": "torch.uint8"}.get(form.kind)
    dynamic: bool | str = form.dynamic
    strategy: str = form.share
    if form.kind == "nvfp4":
        scale_dtype, strategy = "torch.float8_e4m3fn", "tensor_group"
        dynamic = "local" if form.dynamic else False
    return {
        "num_bits": form.bits,
        "type": "int" if form.kind == "int" else "float",
        "symmetric": form.symmetric,
        "strategy": strategy,
        "group_size": form.group,
        "dynamic": dynamic,
        "observer": None if form.dynamic else {"mse": "mse"}.get(form.observer, "minmax"),
        "observer_kwargs": {},
        "actorder": None,
        "block_structure": None,
        "scale_dtype": scale_dtype,
        "zp_dtype": None if form.symmetric else "torch.int8",
    }
