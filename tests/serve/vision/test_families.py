"""Families that see: which are served whole, and which are refused, by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from tests.serve.vision.tiny_seers import Judge, save

from ridgeline.errors import InputError
from ridgeline.serve.config import EngineConfig
from ridgeline.serve.engine.engine import ServingEngine
from ridgeline.serve.engine.start import check_cut
from ridgeline.serve.messages import Delta, PromptImage, Sampling, Submit
from ridgeline.serve.vision.processor import read_image_processor

COUNT = 40
TEXT = "What is on this picture, and what is not?"
PICTURES = [
    Image.linear_gradient("L").resize((50, 40)).convert("RGB"),
    Image.radial_gradient("L").resize((16, 16)).convert("RGB"),
    Image.new("RGB", (30, 60), (200, 10, 30)),
    Image.new("RGB", (60, 20), (10, 30, 200)),
]


def submit(engine: ServingEngine, folder: str, name: str, picture: Any, **fields: Any) -> Submit:
    """What the server makes of a picture with a text behind it."""
    processor = read_image_processor(EngineConfig(model=folder))
    prepared = processor.prepare(picture)
    prompt = engine.model.tokenizer(prepared.text + TEXT, add_special_tokens=False).input_ids
    places = [place for place, one in enumerate(prompt) if one == processor.token_id]
    image = PromptImage(
        places=tuple((one, one + 1) for one in places),
        digest=prepared.digest,
        arrays=prepared.arrays,
    )
    sampling = Sampling(temperature=0.0, max_tokens=COUNT)
    return Submit(id=name, prompt=tuple(prompt), sampling=sampling, images=(image,), **fields)


def answers(engine: ServingEngine, submits: list[Submit]) -> dict[str, list[int]]:
    """The tokens of each, all of them at once."""
    found: dict[str, list[int]] = {one.id: [] for one in submits}
    for one in submits:
        engine.handle(one)
    while engine.has_work:
        engine.step()
        for message in engine.take():
            assert isinstance(message, Delta), message
            found[message.id] += message.tokens
    return found


@pytest.mark.slow
@pytest.mark.parametrize("family", ["llava", "idefics3", "smolvlm"])
def test_pictures_are_seen_again_after_a_preemption(family: str, tmp_path: Path) -> None:
    folder = save(family, tmp_path)
    engine = ServingEngine(
        EngineConfig(
            model=str(folder),
            dtype="fp32",
            kv_bytes=11 * 16 * 256,  # 11 blocks; each request begins with 4 or 5 and ends with 7
            max_length=160,
            max_tokens_per_step=40,
            prefix_cache=False,
            debug=True,
        )
    )
    submits = [submit(engine, str(folder), str(place), one) for place, one in enumerate(PICTURES)]
    found = answers(engine, submits)
    assert engine.stats().preemptions > 0
    judge = Judge(family, folder)
    for place, picture in enumerate(PICTURES):
        prompt, expected = judge.answer(f"<image>{TEXT}", [picture], count=COUNT)
        assert tuple(prompt) == submits[place].prompt
        assert found[str(place)] == expected


QWEN = {
    "vision_config": {
        "depth": 1, "embed_dim": 32, "hidden_size": 32, "num_heads": 2, "patch_size": 4,
    },
    "text_config": {
        "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 96,
        "rope_parameters": {"rope_type": "default", "mrope_section": [1, 1, 2]},
    },
}  # fmt: skip


def test_a_family_with_positions_of_its_own_is_refused_by_name(tmp_path: Path) -> None:
    from transformers import AutoConfig, AutoModelForImageTextToText

    config = AutoConfig.for_model("qwen2_vl", **QWEN)
    AutoModelForImageTextToText.from_config(config).save_pretrained(tmp_path)
    with pytest.raises(InputError, match="family qwen2_vl cannot be served with images: ") as why:
        ServingEngine(EngineConfig(model=str(tmp_path), dtype="fp32"))
    assert "\n" not in str(why.value)


def test_a_model_that_sees_is_not_cut(tmp_path: Path) -> None:
    folder = save("llava", tmp_path)
    with pytest.raises(InputError, match="--tp 2: models that see images are not cut"):
        check_cut(EngineConfig(model=str(folder), tp=2))


def test_a_model_without_its_processor_says_so(tmp_path: Path) -> None:
    folder = save("llava", tmp_path)
    (folder / "processor_config.json").unlink()
    with pytest.raises(InputError, match="its image processor: ") as why:
        ServingEngine(EngineConfig(model=str(folder), dtype="fp32"))
    assert "\n" not in str(why.value)


def test_each_distinct_image_is_looked_at_once(tmp_path: Path) -> None:
    folder = save("llava", tmp_path)
    engine = ServingEngine(EngineConfig(model=str(folder), dtype="fp32", kv_bytes=1 << 22))
    looked = []
    tower = engine.model.tower
    assert tower is not None
    tower.module.vision_tower.register_forward_hook(lambda *_: looked.append(1))
    pictures = [PICTURES[0], PICTURES[2], PICTURES[0], PICTURES[0]]
    submits = [submit(engine, str(folder), str(i), one) for i, one in enumerate(pictures)]
    found = answers(engine, submits)
    assert len(looked) == 2
    assert found["0"] == found["2"] == found["3"]
    assert found["0"] != found["1"]


@pytest.mark.slow
def test_int8_weights_and_bfloat16_see_as_well(tmp_path: Path) -> None:
    folder = str(save("llava", tmp_path))
    for changed in ({"weights": "int8"}, {"dtype": "bf16"}, {"kv_dtype": "int8"}):
        given = {"dtype": "fp32", "kv_bytes": 1 << 22, **changed}
        engine = ServingEngine(EngineConfig(model=folder, **given))
        submits = [submit(engine, folder, str(i), one) for i, one in enumerate(PICTURES)]
        found = answers(engine, submits)
        assert len({tuple(one) for one in found.values()}) == len(PICTURES)
