"""EAGLE heads in the folders that they are published in: a model's config.json, and its weights.

Tensors of the first EAGLE (`eagle/model/cnets1.py` of SafeAILab/EAGLE): `fc`, with a bias unless
config.json has `bias: false`, `layers.0.self_attn`, `layers.0.mlp`,
`layers.0.post_attention_layernorm`, and a copy of the model's own `embed_tokens`, which is left
where it is; in model.safetensors, its shards, or pytorch_model.bin. EAGLE-3 heads (`cnets.py`
there) have `midlayer` or `layers.0`, with `hidden_norm` and `input_layernorm`, `fc` without a bias,
`norm`, `lm_head`, and where they guess some tokens only `d2t` and `t2d`. Which layers' inputs they
read may be said by `eagle_aux_hidden_state_layer_ids`: at the top as vLLM takes it, layers whose
inputs are read, or in `eagle_config` as SGLang does, layers whose outputs are. Whatever else
`eagle.py` and `eagle3.py` do not compute is refused.
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
from ridgeline.serve.speculation.eagle import FACTS, WEIGHTS, EagleHead
from ridgeline.serve.speculation.eagle3 import LAYERS, Eagle3Head
from ridgeline.serve.speculation.eagle_facts import EagleFacts
from ridgeline.serve.speculation.head_files import read_head

CONFIG = "config.json"
PICKLED = "pytorch_model.bin"
PREFIX = "model."
LEFT_OUT = ("embed_tokens.weight", "layers.0.self_attn.rotary_emb.inv_freq", "t2d")
"""Tensors that are the model's own, or follow from the configuration or others."""
MIDDLE, FIRST = "midlayer.", "layers.0."
"""What the only layer of an EAGLE-3 head is called, and what of all others."""


class AuxiliaryStates(msgspec.Struct, frozen=True, kw_only=True):
    """What `eagle_config` says of the layers read."""

    eagle_aux_hidden_state_layer_ids: tuple[int, ...] | None = None
    use_aux_hidden_state: bool = True


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
    target_hidden_size: int | None = None
    norm_before_residual: bool = False
    eagle_aux_hidden_state_layer_ids: tuple[int, ...] | None = None
    eagle_config: AuxiliaryStates | None = None
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
    if _is_third(config) or "d2t" in found or any(name.startswith(MIDDLE) for name in found):
        found = {
            FIRST + name.removeprefix(MIDDLE) if name.startswith(MIDDLE) else name: one
            for name, one in found.items()
        }
        return _third(folder, config, found)
    found.setdefault("fc.bias", torch.zeros(config.hidden_size))
    return _facts(folder, config), _without(found)


def _third(
    folder: Path, config: PublishedEagleConfig, found: dict[str, Tensor]
) -> tuple[EagleFacts, dict[str, Tensor]]:
    """What `read_published` returns, for an EAGLE-3 head.

    Raises:
        InputError: Its guesses are no tokens of the model.
    """
    size, guesses = config.vocab_size, config.draft_vocab_size or config.vocab_size
    offsets = found.setdefault("d2t", torch.zeros(guesses, dtype=torch.int64))
    tokens = offsets + torch.arange(len(offsets))
    if len(offsets) != guesses or offsets.is_floating_point():
        raise InputError(f"{folder}: d2t is not {guesses} integers, as config.json says")
    if not bool(((tokens >= 0) & (tokens < size)).all()) or len(tokens.unique()) != guesses:
        raise InputError(f"{folder}: d2t leads to tokens twice, or to none of the {size} there are")
    facts = msgspec.structs.replace(
        _facts(folder, config),
        draft_vocab=guesses,
        layers_read=_layers_read(folder, config),
        norm_before_residual=config.norm_before_residual,
    )
    return facts, _without(found)


def _layers_read(folder: Path, config: PublishedEagleConfig) -> tuple[int, ...]:
    """Layers whose inputs are read; () where the head does not say."""
    layers = config.eagle_aux_hidden_state_layer_ids or ()
    within = config.eagle_config
    if not layers and within is not None and within.eagle_aux_hidden_state_layer_ids:
        layers = tuple(one + 1 for one in within.eagle_aux_hidden_state_layer_ids)
    if len(layers) not in (0, LAYERS):
        raise InputError(f"{folder}: it reads {len(layers)} layers; heads that read 3 are read")
    return layers


def _without(found: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: one for name, one in found.items() if name not in LEFT_OUT}


def _is_third(config: PublishedEagleConfig) -> bool:
    named = any("eagle3" in one.lower() for one in config.architectures or ())
    return named or config.draft_vocab_size is not None


def _why_not(config: PublishedEagleConfig) -> str:
    if config.num_hidden_layers != 1:
        return f"an EAGLE head of {config.num_hidden_layers} layers; those of one are read"
    if config.rope_scaling is not None:
        return "an EAGLE head whose positions are scaled (rope_scaling) is not read"
    if config.hidden_act != "silu":
        return f"an EAGLE head with hidden_act {config.hidden_act}; those with silu are read"
    if config.target_hidden_size not in (None, config.hidden_size):
        return "an EAGLE head of another width than its model's is not read"
    if config.eagle_config is not None and not config.eagle_config.use_aux_hidden_state:
        return "an EAGLE-3 head that reads one layer (use_aux_hidden_state: false) is not read"
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


def read_eagle(path: str | Path) -> EagleHead:
    """A head that `save` wrote, or one in the folder that it was published in.

    Raises:
        InputError: The folder does not have one.
    """
    folder = Path(path)
    if not (folder / FACTS).exists() and (folder / CONFIG).exists():
        return _published(folder)
    otherwise = "EAGLE head ({}); train one with: ridgeline draft-heads --form eagle"
    return read_head(_empty, EagleFacts, folder / WEIGHTS, folder / FACTS, otherwise)


def _published(folder: Path) -> EagleHead:
    facts, weights = read_published(folder)
    try:
        head = _empty(facts)
        head.load_state_dict(weights)
    except (RuntimeError, ValueError) as error:
        why = f"weights of another form than {CONFIG} says ({in_words(error)})"
        raise InputError(f"{folder}: {why}") from None
    return head


def _empty(facts: EagleFacts) -> EagleHead:
    """A head of the form that facts tell of."""
    return EagleHead(facts) if facts.draft_vocab is None else Eagle3Head(facts)
