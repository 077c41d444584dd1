"""A vision-language model taken apart: a causal language model for the engine, and the rest.

Families differ in what they hand their language model beside embeddings: positions of their own, a
mask by which an image's tokens see each other, features for deeper layers. The engine hands over
embeddings at plain positions, or at positions in three axes (`axes.py`), and nothing else. So a
picture goes through the model at load, up to the call of its language model, and what is handed
over there must be what the engine would hand over; and the language model must give by itself the
logits that the whole gives. A family that passes is served, by whatever name.
"""

from __future__ import annotations

from inspect import signature
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ridgeline.errors import InputError, in_words
from ridgeline.models.folder import read_whole
from ridgeline.serve.config import EngineConfig
from ridgeline.serve.messages import PromptImage
from ridgeline.serve.vision.axes import axes_between
from ridgeline.serve.vision.features import ImageFeatures, VisionTower
from ridgeline.serve.vision.processor import ImageProcessor, read_image_processor

TOLERANCE = {torch.float32: 1e-4, torch.float16: 0.01, torch.bfloat16: 0.05}
"""The largest difference over the spread."""
_HEADS = {"qwen2_vl_text": "Qwen2ForCausalLM", "qwen2_5_vl_text": "Qwen2ForCausalLM"}
"""Language models that transformers has under no head of their own, and one that fits."""
_HARMLESS = {"use_cache", "return_dict", "output_attentions", "output_hidden_states"}
"""Keywords that say how to answer."""
_SIZE = (80, 60)
"""Width and height of the picture, which is cut or scaled as any other."""


class _Handed(Exception):
    """What a language model was called with."""

    def __init__(self, given: dict[str, Any]) -> None:
        super().__init__()
        self.given = given


def sees_images(about: Any) -> bool:
    """Whether a configuration is that of a model for images and text, and of no other kind."""
    from transformers.models.auto.modeling_auto import (
        MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
        MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
    )

    kind = about.model_type
    seeing = kind in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES
    return seeing and kind not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES


def read_apart(
    config: EngineConfig, about: Any, dtype: torch.dtype, device: torch.device
) -> tuple[nn.Module, VisionTower]:
    """The language model, with a head, and what sees.

    Args:
        config: Of the engine.
        about: The model's configuration, as transformers reads it.
        dtype: Of all weights.
        device: Where everything goes.

    Raises:
        InputError: The model cannot be read, or not be taken apart; the line names the family.
    """
    from transformers import AutoModelForImageTextToText

    kind, code = AutoModelForImageTextToText, config.trust_remote_code
    whole = read_whole(kind, config.model, config=about, dtype=dtype, trust_remote_code=code)
    whole = whole.requires_grad_(requires_grad=False).eval().to(device)
    try:
        with torch.inference_mode():
            return _taken_apart(whole, config, dtype, device)
    except InputError:
        raise
    except Exception as error:  # any code of any family runs here
        raise _refusal(about, f"{type(error).__name__}: {in_words(error)}") from error


def _taken_apart(
    whole: Any, config: EngineConfig, dtype: torch.dtype, device: torch.device
) -> tuple[nn.Module, VisionTower]:
    about = whole.config
    base, decoder = whole.base_model, whole.get_decoder()
    owners = [name for name, child in base.named_children() if child is decoder]
    if len(owners) != 1:
        raise _refusal(about, f"its {type(base).__name__} has no language model of its own")
    text = _language_model(whole, decoder)
    some = torch.arange(8, device=device)[None] + 3
    difference = _distance(text(input_ids=some).logits, whole(input_ids=some).logits)
    if not difference <= TOLERANCE[dtype]:
        raise _refusal(
            about, f"its language model alone differs by {difference:.2g} of the logits' spread"
        )
    tower = VisionTower(base, dtype, device, _merged(about))
    _check_handed(whole, decoder, tower, read_image_processor(config), dtype)
    del base._modules[owners[0]]
    return text, tower


def _language_model(whole: Any, decoder: Any) -> Any:
    """The decoder under a head, as transformers has it for text alone."""
    import transformers
    from transformers import AutoModelForCausalLM

    kind = decoder.config.model_type
    try:
        with torch.device("meta"):
            if kind in _HEADS:
                headed = getattr(transformers, _HEADS[kind])
                text = headed._from_config(decoder.config, dtype=decoder.dtype)
            else:
                text = AutoModelForCausalLM.from_config(decoder.config, dtype=decoder.dtype)
    except ValueError:
        raise _refusal(whole.config, f"transformers has no causal model of {kind}") from None
    if kind not in _HEADS and type(text.base_model) is not type(decoder):
        raise _refusal(whole.config, f"its language model is a {type(decoder).__name__}")
    setattr(text, text.base_model_prefix, decoder)
    text.set_output_embeddings(whole.get_output_embeddings())
    text.generation_config = whole.generation_config
    text.config.name_or_path = whole.config.name_or_path
    return text.eval()


def _check_handed(
    whole: Any,
    decoder: nn.Module,
    tower: VisionTower,
    processor: ImageProcessor,
    dtype: torch.dtype,
) -> None:
    """Raise `InputError` unless the model hands over embeddings in a row, and those are ours."""
    from PIL import Image

    picture = Image.linear_gradient("L").resize(_SIZE).convert("RGB")
    prepared = processor.prepare(picture)
    count = prepared.text.count(processor.token)
    tokens = torch.tensor([[3, 4, *[processor.token_id] * count, 5]])
    image = PromptImage(places=((2, 2 + count),), digest=prepared.digest, arrays=prepared.arrays)
    placed = ImageFeatures(tower, 0).placed(image)
    inputs = {one.name: tower.tensor(one) for one in prepared.arrays}
    if "mm_token_type_ids" in signature(whole.forward).parameters:
        inputs["mm_token_type_ids"] = (tokens == processor.token_id).int().to(tower.device)
    device = tower.device
    given = _handed(whole, decoder, {"input_ids": tokens.to(device), **inputs})
    ours = whole.get_input_embeddings()(tokens.to(device))[0].clone()
    ours[torch.from_numpy(placed.positions).to(device)] = placed.features
    theirs = given.pop("inputs_embeds", None)
    if theirs is None or theirs.shape[1:] != ours.shape:
        raise _refusal(whole.config, "it hands no embeddings of all tokens to its language model")
    difference = _distance(ours, theirs[0])
    if not difference <= TOLERANCE[dtype]:
        raise _refusal(
            whole.config, f"embeddings with an image differ by {difference:.2g} of their spread"
        )
    length = len(ours)
    expected = np.arange(length) if placed.grid is None else axes_between([placed], 0, length)
    for name, value in given.items():
        if value is None or name in _HARMLESS or _is_expected(name, value, expected):
            continue
        raise _refusal(whole.config, f"its language model is handed {name} beside embeddings")


def _handed(whole: Any, decoder: nn.Module, inputs: dict[str, Any]) -> dict[str, Any]:
    """What the whole model calls its language model with; that is not computed."""

    def stop(_module: nn.Module, _positional: Any, given: dict[str, Any]) -> None:
        raise _Handed(dict(given))

    hook = decoder.register_forward_pre_hook(stop, with_kwargs=True)
    try:
        whole(**inputs, use_cache=False)
    except _Handed as found:
        return found.given
    finally:
        hook.remove()
    raise _refusal(whole.config, "its language model is not called")


def _is_expected(name: str, value: Any, positions: NDArray[np.int64]) -> bool:
    """Whether these are the positions that the engine gives, too."""
    if name != "position_ids" or not isinstance(value, Tensor):
        return False
    if value.ndim != positions.ndim + 1:
        return False
    found = value[0] if value.ndim == 2 else value[:, 0]
    return np.array_equal(found.cpu().numpy(), positions)


def _merged(about: Any) -> int | None:
    """Patches along each side of a feature, where rotary positions have three axes."""
    rotary = getattr(about.get_text_config(), "rope_parameters", None) or {}
    return about.vision_config.spatial_merge_size if "mrope_section" in rotary else None


def _distance(mine: Tensor, theirs: Tensor) -> float:
    spread = theirs.float().std().clamp_min(1e-6)
    return float((mine.float() - theirs.float()).abs().mean() / spread)


def _refusal(about: Any, why: str) -> InputError:
    return InputError(
        f"models of the family {about.model_type} cannot be served with images: {why};"
        " docs/how-to/serve-a-model.md lists the families that can"
    )
