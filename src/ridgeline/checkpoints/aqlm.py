"""The format of AQLM has linear layers as codes, codebooks and a scale per output.

As aqlm's `QuantizedLinear` has it (Vahe1994/AQLM, inference_lib/src/aqlm/inference.py), which
transformers loads through its AqlmConfig where the package aqlm is installed. The tensors of one
layer [out, in] in groups of g with M books of 256:

    codes      int8 [out, in / g, M], codes from 128 on as negative numbers
    codebooks  [M, 256, 1, g]
    scales     [out, 1, 1, 1]

Other sizes of books (1 x 16 bits) and groups of several outputs are refused by name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ridgeline.checkpoints.files import StoredTensors
from ridgeline.checkpoints.quantised import Quantised
from ridgeline.errors import InputError
from ridgeline.kernels.number_formats.codebooks import ENTRIES, num_books
from ridgeline.records.scheme import NumberFormat

LAYOUT = "aqlm"
"""The method's name in `quantization_config`."""
PARTS = ("codes", "codebooks", "scales")
"""Last parts of the names of a layer's tensors."""
_CODE_BITS = 8


def tensors_of(weight: Quantised) -> dict[str, Tensor]:
    """The tensors of one layer, by the last part of their names."""
    assert weight.books is not None
    return {
        "codes": weight.levels.view(torch.int8),
        "codebooks": weight.books.unsqueeze(2),
        "scales": weight.scales.reshape(-1, 1, 1, 1),
    }


def described(formats: Iterable[NumberFormat], dense: Sequence[str]) -> dict[str, Any]:
    """The `quantization_config` of a model.

    Args:
        formats: Of its layers.
        dense: Linear layers that stay as they are.

    Raises:
        InputError: Layers in several formats, which this one has no words for.
    """
    found = set(formats)
    if len(found) > 1:
        raise InputError("codebooks are one format for all layers; give every layer the same one")
    (form,) = found
    assert form.group is not None
    # transformers 5 compares names of layers, 4 names of weights.
    left = [name for layer in dense for name in (layer, f"{layer}.weight")]
    return {
        "quant_method": LAYOUT,
        "in_group_size": form.group,
        "out_group_size": 1,
        "num_codebooks": num_books(form.bits, form.group),
        "nbits_per_codebook": _CODE_BITS,
        "linear_weights_not_to_quantize": left,
    }


def format_of(directory: str | Path, about: Mapping[str, Any]) -> NumberFormat:
    """What a `quantization_config` says of all layers.

    Raises:
        InputError: Books or groups that are not read here.
    """
    group, books = int(about.get("in_group_size", 8)), int(about.get("num_codebooks", 1))
    code_bits, outputs = int(about.get("nbits_per_codebook", 16)), about.get("out_group_size", 1)
    if code_bits != _CODE_BITS or outputs != 1 or group < 1 or books * _CODE_BITS % group:
        raise InputError(
            f"{directory}: aqlm of {books} codebooks of {code_bits} bits for groups of {outputs} x "
            f"{group} is not supported; codebooks of 8 bits with whole bits a weight are"
        )
    bits = books * _CODE_BITS // group
    return NumberFormat(kind="codebook", bits=bits, share="channel", group=group)


def dense_layers(about: Mapping[str, Any]) -> tuple[str, ...]:
    """Linear layers that a `quantization_config` leaves as they are."""
    names = about.get("linear_weights_not_to_quantize") or ()
    return tuple(dict.fromkeys(str(name).removesuffix(".weight") for name in names))


def read(tensors: StoredTensors, layer: str, form: NumberFormat) -> Quantised:
    """Read the weight of one layer in its codes.

    Raises:
        InputError: Tensors are missing or do not fit.
    """
    assert form.group is not None
    codes, books, scales = (tensors.read(f"{layer}.{part}") for part in PARTS)
    count = num_books(form.bits, form.group)
    fits = codes.dtype == torch.int8 and codes.ndim == 3 and codes.shape[2] == count
    if (
        not fits
        or books.shape != (count, ENTRIES, 1, form.group)
        or scales.shape != (len(codes), 1, 1, 1)
    ):
        raise InputError(
            f"{tensors.directory}: {layer} has codes {list(codes.shape)}, codebooks "
            f"{list(books.shape)} and scales {list(scales.shape)}, which do not fit {count} "
            f"codebooks of {ENTRIES} groups of {form.group}"
        )
    return Quantised(
        format=form,
        levels=codes.contiguous().view(torch.uint8),
        scales=scales.reshape(-1, 1),
        books=books.squeeze(2),
    )
