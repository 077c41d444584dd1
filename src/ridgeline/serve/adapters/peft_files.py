"""A LoRA adapter as PEFT writes it: `adapter_config.json` and `adapter_model.safetensors`.

The tensors' names say which layers are adapted, so `target_modules` (a list, an expression, or
"all-linear") has nothing to add. What would change the result in another way than W x + s B A x
is refused by name: an adapter that is half applied answers wrongly and says nothing.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from ridgeline.errors import InputError

_PREFIX = "base_model.model."
"""PEFT's wrapping of the model."""
_TENSOR = re.compile(r"(?P<layer>.+)\.lora_(?P<side>[AB])\.weight")
_PLAIN_STARTS = (True, False, "gaussian", "orthogonal", "eva")
"""Initialisations that leave the model's own weights as they are. The others (PiSSA, OLoRA, LoftQ,
CorDA, LoRA-GA, MiCA) move part of them into the adapter."""
_PLAIN_KEYS = frozenset(
    (
        "alpha_pattern",
        "auto_mapping",
        "base_model_name_or_path",
        "corda_config",  # of the initialisation, as the next two
        "eva_config",
        "loftq_config",
        "ensure_weight_tying",  # of modules_to_save
        "exclude_modules",  # which layers: the tensors' names say it
        "fan_in_fan_out",  # of the model's own weight
        "inference_mode",
        "init_lora_weights",
        "layers_pattern",
        "layers_to_transform",
        "lora_alpha",
        "lora_dropout",
        "lora_ga_config",
        "megatron_core",
        "peft_type",
        "peft_version",
        "qalora_group_size",
        "r",
        "rank_pattern",
        "revision",
        "runtime_config",
        "target_modules",
        "task_type",
        "use_rslora",
    )
)
"""Settings that change nothing here, or that are read below. Any other must be off."""


@dataclass(frozen=True, slots=True)
class Pair:
    """The addition to one layer: B A x, the scaling s already in B."""

    a: Tensor
    """[rank, inputs]"""
    b: Tensor
    """[outputs, rank] float32"""

    @property
    def rank(self) -> int:
        """Of the addition."""
        return self.a.shape[0]


def read_adapter(folder: Path) -> dict[str, Pair]:
    """The pairs of one adapter by the name of the layer they add to.

    The scaling is α/r, with rank-stabilised LoRA α/√r (Kalajdzievski, 2312.03732), where r is the
    layer's own rank.

    Raises:
        InputError: No adapter lies there, or one of a kind that is not served.
    """
    config = _config(folder)
    _refuse_other_kinds(folder, config)
    sides = _tensors(folder)
    pairs = {}
    for layer, found in sides.items():
        if set(found) != {"A", "B"} or found["A"].shape[0] != found["B"].shape[1]:
            raise InputError(f"{folder}: {layer} lacks one of lora_A and lora_B, or their ranks")
        rank = found["A"].shape[0]
        scaling = _alpha(config, layer) / (math.sqrt(rank) if config.get("use_rslora") else rank)
        pairs[layer] = Pair(found["A"], found["B"].float() * scaling)
    if not pairs:
        raise InputError(f"{folder}: adapter_model.safetensors has no lora_A and lora_B")
    return pairs


def _config(folder: Path) -> dict[str, Any]:
    try:
        text = (folder / "adapter_config.json").read_text()
    except OSError:
        raise InputError(
            f"{folder} has no adapter_config.json; give the directory that PEFT's save_pretrained"
            " wrote"
        ) from None
    try:
        config = json.loads(text)
    except ValueError as error:
        raise InputError(f"{folder}/adapter_config.json is no JSON: {error}") from None
    if not isinstance(config, dict):
        raise InputError(f"{folder}/adapter_config.json holds no object")
    return config


def _refuse_other_kinds(folder: Path, config: dict[str, Any]) -> None:
    kind = config.get("peft_type")
    if kind != "LORA":
        raise InputError(f"{folder}: peft_type {kind} is not served; only LORA is")
    bias = config.get("bias", "none")
    if bias != "none":
        raise InputError(f"{folder}: bias = {bias!r} is not served; train with bias='none'")
    start = config.get("init_lora_weights", True)
    if start not in _PLAIN_STARTS:
        raise InputError(
            f"{folder}: init_lora_weights = {start!r} changed the model's own weights; save it with"
            " PEFT's path_initial_model_for_weight_conversion"
        )
    for key, value in config.items():
        if value and key not in _PLAIN_KEYS and key != "bias":
            raise InputError(
                f"{folder}: {key} = {value!r} is not served; merge the adapter into the model with"
                " PEFT's merge_and_unload and serve that"
            )


def _tensors(folder: Path) -> dict[str, dict[str, Tensor]]:
    path = folder / "adapter_model.safetensors"
    if not path.is_file():
        raise InputError(f"{folder} has no adapter_model.safetensors; pickled weights are not read")
    sides: dict[str, dict[str, Tensor]] = {}
    try:
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118 - safetensors' handle is no mapping
                match = _TENSOR.fullmatch(name.removeprefix(_PREFIX))
                if match is None:
                    raise InputError(
                        f"{path}: {name} is no part of a LoRA over linear layers; copies of"
                        " embeddings stay out with save_pretrained(save_embedding_layers=False)"
                    )
                tensor = file.get_tensor(name)
                if tensor.dim() != 2 or not torch.isfinite(tensor).all():
                    raise InputError(f"{path}: {name} is no matrix of finite numbers")
                sides.setdefault(match["layer"], {})[match["side"]] = tensor
    except SafetensorError as error:
        raise InputError(f"{path} cannot be read: {error}") from None
    return sides


def _alpha(config: dict[str, Any], layer: str) -> float:
    """`alpha_pattern`'s first entry that ends the layer's name, else `lora_alpha`."""
    patterns: dict[str, float] = config.get("alpha_pattern") or {}
    for pattern, alpha in patterns.items():
        if re.match(rf"(.*\.)?({pattern})$", layer):
            return float(alpha)
    return float(config.get("lora_alpha", 8))
