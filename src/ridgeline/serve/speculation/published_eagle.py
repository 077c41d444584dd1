"""EAGLE heads in the folders that they are published in: a model's config.json, and its weights.

Tensors of the first EAGLE (`eagle/model/cnets1.py` of SafeAILab/EAGLE): `fc`, with a bias unless
config.json has `bias: false`, `layers.0.self_attn`, `layers.0.mlp`,
`layers.0.post_attention_layernorm`, and a copy of the model's own `embed_tokens`, which is left
where it is; in model.safetensors, its shards, or pytorch_model.bin. EAGLE-3 heads (`midlayer`,
`d2t`) read states of three of the model's layers and are refused, as is whatever else `eagle.py`
does not compute.
"""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import Tensor

from ridgeline.checkpoints.files import INDEX, SINGLE, StoredTensors
from ridgeline.errors import InputError, in_words
from ridgeline.records.input_file import read_json
from ridgeline.records.overwriting import note_input
from ridgeline.serve.speculation.eagle_facts import EagleFacts

CONFIG = "config.json"
PICKLED = "pytorch_model.bin"
PREFIX = "model."
LEFT_OUT = ("embed_tokens.weight", "layers.0.self_attn.rotary_emb.inv_freq")
"""Tensors that are the model's own, or follow from the configuration."""


class PublishedEagleConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The keys of config.json that say of what form a head is."""

    hidden_size: int
    vocab_size: int
    num_attention_heads: int
    intermediate_size: int
    num_key_value_heads: int | None = None
    head_dim: int | None = None
    num_hidden_layers: int = 1
    hidden_act: str = "silu"
    rms_norm_eps: float = 1e-6
    rope_theta: float = 10_000.0
    rope_scaling: dict[str, Any] | None = None
    attention_bias: bool = False
    draft_vocab_size: int | None = None
    architectures: list[str] | None = None


def read_published(folder: Path) -> tuple[EagleFacts, dict[str, Tensor]]:
    """What a published head is, and its weights under the names of `EagleHead`.

    Raises:
        InputError: A file is missing or damaged, or the head is of another form.
    """
    config = read_json(folder / CONFIG, PublishedEagleConfig)
    why = _why_not(config)
    if why:
        raise InputError(f"{folder}: {why}")
    found = {name.removeprefix(PREFIX): one for name, one in _tensors(folder).items()}
    if "d2t" in found or any(name.startswith("midlayer.") for name in found):
        raise InputError(f"{folder}: {_EAGLE_3}")
    weights = {name: one for name, one in found.items() if name not in LEFT_OUT}
    weights.setdefault("fc.bias", torch.zeros(config.hidden_size))
    return _facts(folder, config), weights


_EAGLE_3 = (
    "this is an EAGLE-3 head, which reads three of the model's layers; heads of the first EAGLE"
    " are read"
)


def _why_not(config: PublishedEagleConfig) -> str:
    named = any("eagle3" in one.lower() for one in config.architectures or ())
    if named or config.draft_vocab_size is not None:
        return _EAGLE_3
    if config.num_hidden_layers != 1:
        return f"an EAGLE head of {config.num_hidden_layers} layers; those of one are read"
    if config.rope_scaling is not None:
        return "an EAGLE head whose positions are scaled (rope_scaling) is not read"
    if config.hidden_act != "silu":
        return f"an EAGLE head with hidden_act {config.hidden_act}; those with silu are read"
    return "an EAGLE head with attention_bias is not read" if config.attention_bias else ""


def _facts(folder: Path, config: PublishedEagleConfig) -> EagleFacts:
    heads = config.num_attention_heads
    return EagleFacts(
        model=folder.name,
        hidden=config.hidden_size,
        vocab=config.vocab_size,
        heads=heads,
        kv_heads=config.num_key_value_heads or heads,
        head_dim=config.head_dim or config.hidden_size // max(heads, 1),
        intermediate=config.intermediate_size,
        rope_theta=config.rope_theta,
        norm_eps=config.rms_norm_eps,
    )


def _tensors(folder: Path) -> dict[str, Tensor]:
    if not (folder / PICKLED).exists() or (folder / SINGLE).exists() or (folder / INDEX).exists():
        stored = StoredTensors(folder)
        return {name: stored.read(name) for name in stored.names if name not in LEFT_OUT}
    path = folder / PICKLED
    note_input(path)
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, EOFError, pickle.UnpicklingError) as error:
        raise InputError(f"{path}: cannot be read ({in_words(error)}); fetch it again") from None
    if not isinstance(found, dict) or not all(isinstance(one, Tensor) for one in found.values()):
        raise InputError(f"{path}: holds no weights by name; fetch it again")
    return found
