"""One tiny vision-language model of each family, with its processor, as folders of checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

ENDS = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}
MARKS = ["<image>", "<fake_token_around_image>", "<end_of_utterance>", "<global-img>"]
TILES = [f"<row_{row}_col_{column}>" for row in (1, 2) for column in (1, 2)]
TEXT = {
    "model_type": "llama",
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "vocab_size": 300,
    "bos_token_id": 256,
    "eos_token_id": 257,
    "pad_token_id": 258,
}
VISION = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4}
TEMPLATE = (
    "{% for message in messages %}{{ message.role }}: {% for part in message.content %}"
    "{% if part.type == 'image' %}<image>{% else %}{{ part.text }}{% endif %}{% endfor %}"
    "{{ '\\n' }}{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}"
)


def tokenizer(template: str | None = TEMPLATE) -> Any:
    """A token a byte, and those that processors write."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocab = {
        sign: number for number, sign in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))
    }
    made = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=made,
        **ENDS,
        additional_special_tokens=[*MARKS, *TILES],
        chat_template=template,
    )


def save(family: str, folder: Path, *, template: str | None = TEMPLATE) -> Path:
    """A random model of a family; its weights are large, so that attention is not flat."""
    from transformers import AutoConfig, AutoModelForImageTextToText

    words = tokenizer(template)
    image_token = words.convert_tokens_to_ids("<image>")
    if family == "llava":
        vision = {"model_type": "clip_vision_model", "image_size": 32, "patch_size": 8}
        special = {
            "vision_config": {**VISION, **vision, "num_hidden_layers": 3, "projection_dim": 16},
            "vision_feature_layer": -2,
            "image_token_index": image_token,
        }
    elif family.startswith("qwen"):
        special = _qwen(family, image_token)
    else:
        vision = {"image_size": 16, "patch_size": 4, "num_hidden_layers": 2}
        special = {"vision_config": {**VISION, **vision}, "scale_factor": 2}
    config = AutoConfig.for_model(
        family, image_token_id=image_token, **{"text_config": TEXT, **special}
    )
    torch.manual_seed(0)
    model = AutoModelForImageTextToText.from_config(config).eval()
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim == 2:
                weight.mul_(6.0)
    target = folder / family
    model.save_pretrained(target)
    if family.startswith("qwen"):
        words.save_pretrained(target)
        patches().save_pretrained(target)
    else:
        processor(family, words).save_pretrained(target)
    return target


def _qwen(family: str, image_token: int) -> dict[str, Any]:
    """What Qwen's families have of their own: positions in three axes, images of any shape."""
    rotary = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [1, 1, 2]}
    vision: dict[str, Any] = {"depth": 2, "hidden_size": 32, "num_heads": 2, "patch_size": 4}
    if family == "qwen2_vl":
        vision |= {"embed_dim": 32}
    else:
        vision |= {"intermediate_size": 48, "out_hidden_size": 32, "window_size": 16}
        vision |= {"fullatt_block_indexes": [1]}
    text = {name: value for name, value in TEXT.items() if name != "model_type"}
    others = ("vision_start_token_id", "vision_end_token_id", "video_token_id")
    return {
        "text_config": {**text, "rope_parameters": rotary},
        "vision_config": vision,
        **{name: image_token + 1 + place for place, name in enumerate(others)},
    }


def patches() -> Any:
    """Qwen's image processor, for pictures of at most 32 features."""
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import (
        Qwen2VLImageProcessorPil,
    )

    size = {"shortest_edge": 64, "longest_edge": 2048}
    return Qwen2VLImageProcessorPil(patch_size=4, merge_size=2, size=size)


def processor(family: str, words: Any) -> Any:
    """What prepares a family's images: LLaVA's cuts one square, the others cut tiles."""
    from transformers import Idefics3Processor, LlavaProcessor
    from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
    from transformers.models.idefics3.image_processing_pil_idefics3 import (
        Idefics3ImageProcessorPil,
    )

    if family == "llava":
        size = {"height": 32, "width": 32}
        return LlavaProcessor(
            CLIPImageProcessorPil(size={"shortest_edge": 32}, crop_size=size),
            words,
            patch_size=8,
            vision_feature_select_strategy="default",
            num_additional_image_tokens=1,
        )
    tiles = Idefics3ImageProcessorPil(
        size={"longest_edge": 32}, max_image_size={"longest_edge": 16}
    )
    return Idefics3Processor(tiles, words, image_seq_len=4)


class Judge:
    """transformers' own answers: its processor's inputs, its `generate`, in float32."""

    def __init__(self, family: str, folder: Path) -> None:
        from transformers import AutoModelForImageTextToText, AutoTokenizer

        self.model = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32)
        words = AutoTokenizer.from_pretrained(folder)
        self.processor = None if family.startswith("qwen") else processor(family, words)
        self._words = words

    def answer(self, text: str, images: list[Any], *, count: int) -> tuple[list[int], list[int]]:
        """The prompt's tokens, and the most likely completion's, end token left out."""
        inputs = (
            self._patched(text, images)
            if self.processor is None
            else self.processor(
                text=text, images=images or None, return_tensors="pt", add_special_tokens=False
            )
        )
        prompt = inputs["input_ids"][0].tolist()
        whole = self.model.generate(**inputs, max_new_tokens=count, do_sample=False)[0].tolist()
        return prompt, [one for one in whole[len(prompt) :] if one != TEXT["eos_token_id"]]

    def _patched(self, text: str, images: list[Any]) -> Any:
        """What Qwen's processor makes, which cannot be had whole without torchvision."""
        found = dict(patches()(images=images, return_tensors="pt"))
        pieces = text.split("<image>")
        counts = (found["image_grid_thw"].prod(-1) // 4).tolist()
        whole = pieces[0] + "".join(
            "<image>" * count + piece for count, piece in zip(counts, pieces[1:], strict=True)
        )
        ids = self._words(whole, return_tensors="pt", add_special_tokens=False)
        kinds = (ids["input_ids"] == self.model.config.image_token_id).int()
        return {**ids, **found, "mm_token_type_ids": kinds}
