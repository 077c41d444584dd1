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
    else:
        vision = {"image_size": 16, "patch_size": 4, "num_hidden_layers": 2}
        special = {"vision_config": {**VISION, **vision}, "scale_factor": 2}
    config = AutoConfig.for_model(family, text_config=TEXT, image_token_id=image_token, **special)
    torch.manual_seed(0)
    model = AutoModelForImageTextToText.from_config(config).eval()
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim == 2:
                weight.mul_(6.0)
    target = folder / family
    model.save_pretrained(target)
    processor(family, words).save_pretrained(target)
    return target


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
        self.processor = processor(family, AutoTokenizer.from_pretrained(folder))

    def answer(self, text: str, images: list[Any], *, count: int) -> tuple[list[int], list[int]]:
        """The prompt's tokens, and the most likely completion's, end token left out."""
        inputs = self.processor(
            text=text, images=images or None, return_tensors="pt", add_special_tokens=False
        )
        prompt = inputs["input_ids"][0].tolist()
        whole = self.model.generate(**inputs, max_new_tokens=count, do_sample=False)[0].tolist()
        return prompt, [one for one in whole[len(prompt) :] if one != TEXT["eos_token_id"]]
