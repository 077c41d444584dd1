"""Read a Hugging Face `config.json` into a `ModelSpec`; no transformers, no download.

A multimodal configuration keeps its language model under `text_config` (LLaVA, Gemma 3, Qwen-VL):
that part is read, and the vision tower is not counted. Such a part holds only what differs from
its class's defaults; those are in `families/defaults.toml`. `families/` has one reader per model
type.
"""

from __future__ import annotations

import difflib
import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from ridgeline.models.families import readers
from ridgeline.models.keys import Keys
from ridgeline.models.spec import ModelSpec
from ridgeline.records.input_file import read_json

ALIKE = {
    "MiniMaxText01": "minimax",
    "RefinedWeb": "falcon",
    "RefinedWebModel": "falcon",
    "emu3_text_model": "llama",
    "gemma3": "gemma3_text",
    "glm4v_moe_text": "glm4_moe",
    "glm4v_text": "glm4",
    "glm_image_text": "glm4",
    "glm_ocr_text": "glm",
    "granite4_vision_text": "granite",
    "granite_docling_text": "granite",
    "hunyuan": "hunyuan_v1_moe",
    "hunyuan_vl_text": "hunyuan_v1_dense",
    "kimi_k2": "deepseek_v3",
    "minimax_text_01": "minimax",
    "ministral3": "mistral",
    "mistral4": "deepseek_v3",
    "mt5": "t5",
    "paddleocr_vl_text": "ernie4_5",
    "phi-msft": "phi",
    "phi4_multimodal": "phi3",
    "phi4mm": "phi3",
    "qwen2_5_omni_text": "qwen2",
    "qwen2_5_vl": "qwen2",
    "qwen2_5_vl_text": "qwen2",
    "qwen2_vl": "qwen2",
    "qwen2_vl_text": "qwen2",
    "qwen3_5": "qwen3_5_text",
    "qwen3_5_moe": "qwen3_5_moe_text",
    "qwen3_omni_moe_text": "qwen3_moe",
    "qwen3_vl_moe_text": "qwen3_moe",
    "qwen3_vl_text": "qwen3",
}
"""Model types that are another one's shape under a second name."""
NESTED = ("thinker_config", "text_config", "llm_config", "language_config")
"""Where multimodal configurations keep their language model; one part may hold another."""
NOT_MODELLED = {
    "albert": "its layers share one set of weights",
    "blt": "it reads bytes through two models more",
    "convbert": "half of its attention is convolutions",
    "dbrx": "transformers' own class does not read its configuration, so no count could be checked",
    "deepseek_v4": "its cache is compressed, not a key for each token",
    "jetmoe": "its attention is a mixture of experts, too",
    "longformer": "some of its tokens attend by projections of their own",
    "mllama_text_model": "some of its layers attend to images, not to tokens",
    "reformer": "its attention goes by hashes, and its layers are reversible",
    "rembert": "its two embeddings have widths of their own",
    "whisper": "it hears: its two stacks have sequences of different lengths",
    "xlnet": "its attention has two streams",
    "xlstm": "its states are of several kinds",
    "zamba": "its layers share one attention",
    "zamba2": "its layers share one attention",
}
"""Model types that could be named but not counted, and why."""
OF_IMAGES = (
    "beit", "bit", "convnext", "convnextv2", "cvt", "data2vec-vision", "deit", "dinov2",
    "dinov2_with_registers", "efficientnet", "focalnet", "hiera", "levit", "mobilenet_v1",
    "mobilenet_v2", "mobilevit", "mobilevitv2", "poolformer", "pvt", "pvt_v2", "regnet", "resnet",
    "segformer", "swiftformer", "swin", "swinv2", "vit_msn",
)  # fmt: skip
"""Model types of networks for images that have no reader: lists of operators, as `roofline` counts
them from their modules."""
_ALL_FAMILIES = "docs/reference/models.md lists all that are read"


def read_config(path: str | Path) -> ModelSpec:
    """The model that a `config.json`, or the folder that holds one, describes."""
    place = Path(path)
    file = place / "config.json" if place.is_dir() else place
    cure = "give a config.json or the folder that holds it"
    values = read_json(file, dict[str, Any], cure=cure)
    name = file.resolve().parent.name if file.name == "config.json" else file.stem
    return spec_from_config(values, place=str(file), name=name)


def spec_from_config(values: Mapping[str, Any], *, place: str, name: str) -> ModelSpec:
    """The model that these keys describe; `place` is named in complaints.

    >>> sizes = dict(n_embd=768, n_layer=12, n_head=12, n_positions=1024, vocab_size=50257)
    >>> spec_from_config({"model_type": "gpt2", **sizes}, place="here", name="mine").ffn
    3072
    """
    keys = _language_part(Keys(values, place))
    kind = keys.text("model_type", default="")
    if not kind:
        keys.refuse("model_type", f"is missing; add it, as transformers has it ({_ALL_FAMILIES})")
    known = readers()
    if kind in OF_IMAGES:
        keys.refuse(
            "model_type", f"is {kind!r}, a vision network; ridgeline roofline hf:FOLDER counts it"
        )
    reader = known.get(ALIKE.get(kind, kind))
    if kind in NOT_MODELLED:
        keys.refuse("model_type", f"is {kind!r}, which is not modelled: {NOT_MODELLED[kind]}")
    if reader is None and keys.values.get("is_encoder_decoder") is True:
        keys.refuse(
            "model_type", f"is {kind!r}, an encoder-decoder; of these only t5 and mt5 are modelled"
        )
    if reader is None:
        near = difflib.get_close_matches(kind, [*known, *ALIKE], n=3, cutoff=0.75)
        hint = f"did you mean {', '.join(near)}?" if near else _ALL_FAMILIES
        keys.refuse("model_type", f"{kind!r} is not known; {hint}")
    return msgspec.structs.replace(reader(keys), name=name)


def _language_part(keys: Keys) -> Keys:
    """The keys of the text model inside a multimodal configuration; else all of them."""
    name = next((one for one in NESTED if keys.has(one)), None)
    if name is None:
        return keys
    inner = keys.table(name)
    kind = inner.text("model_type", default="")
    values = {**_class_defaults().get(ALIKE.get(kind, kind), {}), **inner.values}
    if any(inner.has(name) for name in NESTED):
        return _language_part(inner)
    # The outer model ties the head; what it is called is not what the inner one is, so its
    # `architectures` stay behind.
    if "tie_word_embeddings" in keys.values:
        values.setdefault("tie_word_embeddings", keys.values["tie_word_embeddings"])
    values.pop("architectures", None)
    return Keys(values, inner.place)


@functools.cache
def _class_defaults() -> dict[str, dict[str, int]]:
    """Model type → keys that a nested part may leave out."""
    file = Path(__file__).parent / "families" / "defaults.toml"
    return msgspec.toml.decode(file.read_bytes(), type=dict[str, dict[str, int]])
