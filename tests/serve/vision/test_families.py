"""Families that see: which are served whole, and which are refused, by name."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from tests.serve.vision.tiny_seers import Judge, save

from ridgeline.errors import InputError
from ridgeline.serve.config import EngineConfig
from ridgeline.serve.engine.engine import ServingEngine
from ridgeline.serve.engine.start import check_cut
from ridgeline.serve.messages import Delta, PromptImage, Sampling, Submit
from ridgeline.serve.vision.axes import axes_between
from ridgeline.serve.vision.features import PlacedImage
from ridgeline.serve.vision.processor import read_image_processor

COUNT = 40
TEXT = "What is on this picture, and what is not?"
PICTURES = [
    Image.linear_gradient("L").resize((50, 40)).convert("RGB"),
    Image.radial_gradient("L").resize((16, 16)).convert("RGB"),
    Image.new("RGB", (30, 60), (200, 10, 30)),
    Image.new("RGB", (60, 20), (10, 30, 200)),
]


def submit(engine: ServingEngine, folder: str, name: str, *pictures: Any) -> Submit:
    """What the server makes of pictures with a text behind each."""
    processor = read_image_processor(EngineConfig(model=folder))
    prepared = [processor.prepare(one) for one in pictures]
    text = "".join(one.text + TEXT for one in prepared)
    prompt = engine.model.tokenizer(text, add_special_tokens=False).input_ids
    places = iter([place for place, one in enumerate(prompt) if one == processor.token_id])
    images = tuple(
        PromptImage(
            places=tuple(
                (place, place + 1) for place in islice(places, one.text.count(processor.token))
            ),
            digest=one.digest,
            arrays=one.arrays,
        )
        for one in prepared
    )
    sampling = Sampling(temperature=0.0, max_tokens=COUNT)
    return Submit(id=name, prompt=tuple(prompt), sampling=sampling, images=images)


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
@pytest.mark.parametrize("family", ["llava", "idefics3", "smolvlm", "qwen2_vl", "qwen2_5_vl"])
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


@pytest.mark.slow
@pytest.mark.parametrize("family", ["smolvlm", "qwen2_vl", "qwen2_5_vl"])
def test_several_pictures_count_on_from_each_other_cached_or_not(
    family: str, tmp_path: Path
) -> None:
    folder = save(family, tmp_path)
    config = EngineConfig(model=str(folder), dtype="fp32", kv_bytes=1 << 22, debug=True)
    engine = ServingEngine(config)
    judge = Judge(family, folder)
    shown = [PICTURES[:3], PICTURES[:2], [*PICTURES[:2], PICTURES[3]], PICTURES[1::-1]]
    for pictures in shown:
        asked = submit(engine, str(folder), "x", *pictures)
        prompt, expected = judge.answer(f"<image>{TEXT}" * len(pictures), pictures, count=COUNT)
        assert tuple(prompt) == asked.prompt
        assert answers(engine, [asked])["x"] == expected
    assert engine.stats().prefix_hits > 100


def test_positions_behind_an_image_go_on_behind_its_longer_side() -> None:
    images = [
        PlacedImage(np.arange(2, 8), torch.empty(6, 1), grid=(2, 3)),
        PlacedImage(np.arange(9, 11), torch.empty(2, 1), grid=(2, 1)),
    ]
    whole = [
        [0, 1, 2, 2, 2, 2, 2, 2, 5, 6, 6, 8, 9],
        [0, 1, 2, 2, 2, 3, 3, 3, 5, 6, 7, 8, 9],
        [0, 1, 2, 3, 4, 2, 3, 4, 5, 6, 6, 8, 9],
    ]
    assert axes_between(images, 0, 13).tolist() == whole
    assert axes_between(images, 4, 10).tolist() == [axis[4:10] for axis in whole]
    assert axes_between(images, 12, 13).tolist() == [[9], [9], [9]]


QWEN3 = {
    "vision_config": {"depth": 1, "hidden_size": 32, "num_heads": 2, "patch_size": 4},
    "text_config": {
        "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "head_dim": 8,
        "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 96,
        "rope_parameters": {"rope_type": "default", "mrope_section": [2, 1, 1]},
    },
}  # fmt: skip


def test_a_family_that_hands_over_more_is_refused_by_name(tmp_path: Path) -> None:
    from transformers import AutoConfig, AutoModelForImageTextToText

    config = AutoConfig.for_model("qwen3_vl", **QWEN3)
    AutoModelForImageTextToText.from_config(config).save_pretrained(tmp_path)
    with pytest.raises(InputError, match="family qwen3_vl cannot be served with images: ") as why:
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
