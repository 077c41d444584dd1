"""A Hugging Face causal LM, loaded for serving: from a directory or the hub, checked, shrunk.

Order matters for the peak of memory and for what is checked: load in the final dtype with linear
layers replaced one by one as they are read (`serve/weights/by_layer.py`), or all at once and
replaced later where only transformers can read the files; take the shapes of its cache, prove that
paged attention computes the same (`trial.py`), then replace small modules (`fused.py`), and look
for a way past the layers (`direct.py`), which proves itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from msgspec.structs import replace
from torch import nn
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from ridgeline.checkpoints.tokenizer import has_tokenizer
from ridgeline.errors import InputError
from ridgeline.models.quiet import quiet_libraries
from ridgeline.serve.cache import KvForm, KvShape, form_of
from ridgeline.serve.config import EngineConfig
from ridgeline.serve.messages import MemoryRow
from ridgeline.serve.model import trial
from ridgeline.serve.model.attention import NAME, Attended, register
from ridgeline.serve.model.direct import direct
from ridgeline.serve.model.fused import fuse
from ridgeline.serve.model.kept import KeptStart, Proven, kept_start
from ridgeline.serve.model.llama_like import NotInOne
from ridgeline.serve.model.loaded import LoadedModel
from ridgeline.serve.model.own_attention import adds_bias, take_over
from ridgeline.serve.model.reading import read_model
from ridgeline.serve.packed.tokenizer import kept_tokenizer
from ridgeline.serve.tensor_parallel.group import RankGroup
from ridgeline.serve.weights import calibrated_cache, is_compressed, shrink
from ridgeline.serve.weights.experts import why_numbers
from ridgeline.serve.weights.rounding import (
    LARGEST_DIFFERENCE,
    NO_BYTES,
    as_multiplied,
    has_rounded,
    keep_weights_alone,
    say_too_coarse,
    too_coarse,
    unrounded,
)

if TYPE_CHECKING:
    from ridgeline.serve.model.recurrent import RecurrentLayers

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def load(config: EngineConfig, group: RankGroup | None = None) -> LoadedModel:
    """Load, check and shrink the model that a configuration names.

    Args:
        config: Of the engine.
        group: The ranks over which the model is cut; None: it is loaded whole.

    Raises:
        InputError: It is not there, not a causal LM, of a family that does not fit, or its weights
            cannot be shrunk as asked.
    """
    device = device_of(config) if group is None else group.device
    dtype = dtype_of(config, device)
    asked, config = config, as_multiplied(config, device)
    kept = kept_start(config, dtype, device, group)
    plain = None
    if kept is not None and not config.compiled and group is None:
        plain = kept.plain_model(dtype, Path(config.model))
    if plain is None:
        with quiet_libraries():
            register()
            model, tower, gate = read_model(config, dtype, device, group, kept)
            take_over(model)
    else:
        model, tower, gate = plain, None, None
    positions = settle_frequencies(model, config.max_length)
    model.requires_grad_(requires_grad=False).eval()
    vocab = model.config.get_text_config().vocab_size
    recurrent = trial.recurrent_layers(model, vocab) if plain is None else None
    proven = None if kept is None else kept.proven
    if group is not None and not group.least(int(proven is not None)):
        proven = None  # some rank has to compute it, which takes all
    if proven is not None:
        shapes, calls = proven.shapes, list(proven.calls)
        if plain is None:
            model.set_attn_implementation(NAME)
    else:
        shapes = trial.kv_shapes(model, vocab)
        calls = trial.check(model, shapes, vocab, recurrent)
    rounding = settle_rounding(config, model, shapes, kept, recurrent)
    loaded = LoadedModel(model, _tokenizer(config), shapes)
    loaded.recurrent, loaded.positions, loaded.gate = recurrent, positions, gate
    loaded.kept, loaded.proven = kept, proven
    loaded.kv_form = _kv_form(config, model, shapes, loaded.dtype)
    loaded.weight_rows = shrink(model, config)
    if tower is not None:
        loaded.tower = tower
        row = MemoryRow(what="vision tower", bytes=tower.weight_bytes(), note="and projector")
        loaded.weight_rows.append(row)
    if kept is not None and group is not None:
        kept.notice(model)
    fuse(model)
    if kept is not None and kept.note:
        loaded.weight_rows = [
            replace(row, note=f"{row.note}, {kept.note}") for row in loaded.weight_rows
        ]
    loaded.weight_rows = noted(loaded.weight_rows, rounding)
    loaded.slower = slower_paths(asked, config, model, rounding)
    if group is not None:
        _compute_with_others(loaded, calls, group)
        return loaded
    _compute_in_one(loaded, calls, rounding)
    return loaded


def _kv_form(config: EngineConfig, model: Any, shapes: list[KvShape], dtype: torch.dtype) -> KvForm:
    """How keys and values are kept.

    Raises:
        InputError: The model's keys are none that eight bits hold.
    """
    if config.kv_dtype != "model" and adds_bias(model):
        family = model.config.model_type
        raise InputError(
            f"--kv-dtype {config.kv_dtype}: keys of the family {family} carry a bias for their"
            " positions, which 8 bits do not hold; leave it out"
        )
    stored = calibrated_cache(config.model, model, shapes) if is_compressed(config.model) else None
    return form_of(config.kv_dtype, dtype, stored)


def _compute_with_others(loaded: LoadedModel, calls: list[Attended], group: RankGroup) -> None:
    """Note how a rank computes, and what was found out about its share."""
    sums = ["add up what they have twice a layer"] if group.shares > 1 else []
    why = " and ".join([*sums, *(["pass states on"] if group.stages > 1 else [])])
    not_in_one = f"{group.size} ranks {why}"
    loaded.layer_path = f"one by one: {not_in_one}"
    if loaded.kept is not None and loaded.proven is None:
        loaded.proven = Proven(calls=tuple(calls), not_in_one=not_in_one)


def _compute_in_one(loaded: LoadedModel, calls: list[Attended], rounding: float | None) -> None:
    """Give a model its short way, where it has one, and note what was found out about it."""
    kept, shapes = loaded.kept, loaded.kv_shapes
    not_in_one = "" if loaded.proven is None else loaded.proven.not_in_one
    if not not_in_one and loaded.recurrent is not None:
        not_in_one = "some of them keep a state"
    if not not_in_one:
        try:
            known = loaded.proven is not None
            loaded.direct = direct(loaded.model, shapes, loaded.vocab, calls, proven=known)
        except NotInOne as why:
            not_in_one = str(why)
    if not_in_one:
        loaded.layer_path = f"one by one: {not_in_one}"
    if loaded.proven is None:
        proven = Proven(calls=tuple(calls), not_in_one=not_in_one, rounding=rounding)
        shape = None if kept is None else kept.plain_of(loaded.model, proven, loaded.vocab)
        loaded.proven = replace(proven, plain=shape)


def device_of(config: EngineConfig) -> torch.device:
    """Where the model runs.

    Raises:
        InputError: CUDA was asked for and is not there.
    """
    if config.device == "cuda" and not torch.cuda.is_available():
        raise InputError("--device cuda: PyTorch sees no GPU here; use --device cpu")
    if config.device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return torch.device(config.device)


def dtype_of(config: EngineConfig, device: torch.device) -> torch.dtype:
    """The dtype that was asked for; auto: bf16 where the device multiplies it natively, or fp32."""
    if config.dtype != "auto":
        return DTYPES[config.dtype]
    if device.type == "cuda":
        native = torch.cuda.is_bf16_supported(including_emulation=False)
    else:
        native = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    return torch.bfloat16 if native else torch.float32


def _tokenizer(config: EngineConfig) -> Any:
    """The tokenizer; None where the model comes without one: token ids then go in and out."""
    where = config.tokenizer or config.model
    if config.tokenizer is None and Path(where).is_dir() and not has_tokenizer(Path(where)):
        return None
    return kept_tokenizer(config)


KIND = "longrope"


def settle_frequencies(model: nn.Module, longest: int | None) -> str:
    """Let every position turn by one set of rotary frequencies, for all sequences.

    LongRoPE (Ding et al., 2402.13753; Phi 3 and 4) has two: one up to the context that the model
    was first trained for, one beyond. transformers chooses by the longest position of a call. Where
    a call has many sequences, a short one would then turn as the longest beside it, another time
    otherwise, and meet keys that were turned by the other set. So the choice is made once, by the
    longest sequence that may come, as vLLM makes it.

    Args:
        model: Of any family.
        longest: Tokens of the longest sequence that may come; None: as many as the model takes.

    Returns:
        A remark on the choice; empty where there is none to make.
    """
    remark = ""
    for module in model.modules():
        if getattr(module, "rope_type", None) == KIND:
            remark = _settle(module, longest)
    return remark


def _settle(rotary: Any, longest: int | None) -> str:
    trained = rotary.config.rope_parameters["original_max_position_embeddings"]
    if longest is None:
        longest = rotary.config.max_position_embeddings
    at = trained + 1 if longest > trained else trained
    device = rotary.inv_freq.device
    chosen, _ = ROPE_INIT_FUNCTIONS[KIND](rotary.config, device, seq_len=at)
    rotary.inv_freq.copy_(chosen)
    rotary.original_inv_freq.copy_(chosen)
    rotary.long_inv_freq = chosen
    if longest <= trained:
        return ""
    return f"turned for contexts beyond {trained}; --max-length {trained} turns them for short ones"


def settle_rounding(
    config: EngineConfig,
    model: Any,
    shapes: list[KvShape],
    kept: KeptStart | None,
    recurrent: RecurrentLayers | None,
) -> float | None:
    """What rounding the activations does to logits; a model that suffers keeps weights alone.

    None: none are rounded, or by the checkpoint's own wish.
    """
    if config.weights != "w8a8" or config.ranks > 1:
        return None
    if kept is not None and kept.proven is not None:
        difference = kept.proven.rounding
    elif has_rounded(model):
        vocab = model.config.get_text_config().vocab_size
        rounded = trial.logits_over_blocks(model, shapes, vocab, recurrent)
        with unrounded(model):
            plain = trial.logits_over_blocks(model, shapes, vocab, recurrent)
        difference = trial.worst_difference(rounded, plain)
        if difference > LARGEST_DIFFERENCE:
            keep_weights_alone(model, model.dtype)
            if kept is not None:
                kept.notice(model)
    else:
        difference = None
    if difference is not None and difference > LARGEST_DIFFERENCE:
        say_too_coarse(difference)
    return difference


def noted(rows: Sequence[MemoryRow], rounding: float | None) -> list[MemoryRow]:
    """Rows of the memory ledger, where those of rounded layers say what that does to logits."""
    if rounding is None:
        return list(rows)
    apart = f"; rounding moves logits by {rounding:.3f} of their spread"
    return [
        replace(row, note=row.note + apart) if row.what.endswith("activations too") else row
        for row in rows
    ]


def slower_paths(
    asked: EngineConfig, config: EngineConfig, model: nn.Module, rounding: float | None
) -> tuple[str, ...]:
    """What is slower than it might be, a line each.

    Args:
        asked: The configuration as the user gave it.
        config: The same with the weights that this device multiplies.
        model: With its layers replaced.
        rounding: What rounding activations moves logits by; None: they were not tried.
    """
    found = []
    numbers = why_numbers(model, config)
    if numbers is not None:
        found.append(f"experts as numbers: {numbers}")
    if asked.weights != config.weights:
        found.append(f"activations as they are: {NO_BYTES}")
    elif rounding is not None and rounding > LARGEST_DIFFERENCE:
        found.append(f"activations as they are: {too_coarse(rounding)}")
    return tuple(found)
