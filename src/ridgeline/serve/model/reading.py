"""A model's modules and weights, read the one way that its checkpoint and its ranks ask for.

A checkpoint that was compressed before, a model that sees, a rank's share, what an earlier start
kept packed, layer by layer, or by transformers alone: the first that fits.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

from ridgeline.errors import InputError
from ridgeline.models.folder import read_by_library, read_whole
from ridgeline.serve.config import EngineConfig
from ridgeline.serve.model.kept import KeptStart
from ridgeline.serve.pipeline_parallel.gate import StageGate
from ridgeline.serve.pipeline_parallel.stages import load_stage
from ridgeline.serve.tensor_parallel.group import RankGroup
from ridgeline.serve.tensor_parallel.reading import load_share
from ridgeline.serve.vision.features import VisionTower
from ridgeline.serve.vision.model import read_apart, sees_images
from ridgeline.serve.weights import is_compressed, load_compressed
from ridgeline.serve.weights.by_layer import read_by_layer
from ridgeline.serve.weights.row_peaks import SCALED_BY_ROW


def read_model(
    config: EngineConfig,
    dtype: torch.dtype,
    device: torch.device,
    group: RankGroup | None,
    kept: KeptStart | None,
) -> tuple[Any, VisionTower | None, StageGate | None]:
    """The language model, what sees where it has that, and the gate of the first of its stages.

    Args:
        config: Of the engine.
        dtype: Of the weights that are read as they are.
        device: Where the model is to be.
        group: The ranks over which it is cut; None: it is read whole.
        kept: What an earlier start left, or what this one leaves; None: neither.

    Raises:
        InputError: It is no causal LM, or one that is quantised in a way that is not read.
    """
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.utils import logging as notices

    notices.disable_progress_bar()
    with read_by_library(config.model, what="config.json"):
        about = AutoConfig.from_pretrained(config.model, trust_remote_code=config.trust_remote_code)
    if getattr(about, "is_encoder_decoder", False):
        raise InputError(
            f"{config.model}: models of the family {about.model_type} have an encoder; "
            "only causal language models are served"
        )
    seeing = sees_images(about)
    if is_compressed(config.model):
        if seeing:
            raise InputError(
                f"{config.model}: models that see images are not read from compressed-tensors;"
                " give the model that it was made from, with --weights int8 or int4"
            )
        model = load_compressed(
            config.model, dtype, device=device, trust_remote_code=config.trust_remote_code
        )
        return model, None, None
    if getattr(about, "quantization_config", None) is not None:
        raise InputError(
            f"{config.model}: only compressed-tensors checkpoints are read quantised; "
            "give the unquantised model with --weights int8 or int4"
        )
    if seeing:
        return *read_apart(config, about, dtype, device), None
    if group is not None:
        if kept is not None and kept.has_weights:
            model, gate = _share(config, about, dtype, group, weights=False)
            if kept.fills(model):
                return model, None, gate
        model, gate = _share(config, about, dtype, group)
        return model, None, gate
    if kept is not None:
        mapped = kept.model(about, dtype, Path(config.model))
        if mapped is not None:
            return mapped, None, None
    layered = read_by_layer(config, about, dtype, device)
    if layered is not None:
        if kept is not None:
            kept.notice(layered)
        return layered, None, None
    model = read_whole(
        AutoModelForCausalLM,
        config.model,
        config=about,
        dtype=dtype,
        attn_implementation="eager",
        trust_remote_code=config.trust_remote_code,
    )
    return model.to(device), None, None


def _share(
    config: EngineConfig, about: Any, dtype: torch.dtype, group: RankGroup, *, weights: bool = True
) -> tuple[nn.Module, StageGate | None]:
    """What this rank has of the model, and the gate of the first of its stages."""
    directory = Path(config.model)
    how: Any = {"trust_remote_code": config.trust_remote_code, "weights": weights}
    how["whole_experts"] = config.expert_parallel
    how["scaled_by_row"] = config.weights in SCALED_BY_ROW
    if config.pp == 1:
        return load_share(about, directory, dtype, group.line, **how), None
    return load_stage(about, directory, dtype, group, **how)
