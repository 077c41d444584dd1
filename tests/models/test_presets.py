"""Finding a model by name, by sizes, and files of presets that are wrong."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from ridgeline.errors import InputError
from ridgeline.models import load_model, model_from_flags, model_from_text, parameter_count
from ridgeline.models.names import fold
from ridgeline.models.presets import FOLDER, known_presets, preset_names


@pytest.mark.parametrize(
    ("typed", "name"),
    [
        ("llama3-8b", "Llama-3-8B"),
        ("LLAMA 3 8B", "Llama-3-8B"),
        ("meta_llama_3_8b", "Llama-3-8B"),
        ("meta-llama/Meta-Llama-3-8B-Instruct", "Llama-3-8B"),
        ("meta-llama/Llama-2-7b-chat-hf", "Llama-2-7B"),
        ("Llama-2-7b-hf", "Llama-2-7B"),
        ("gpt2", "GPT-2"),
        ("GPT-3", "GPT-3-175B"),
        ("google/gemma-2-9b-it", "Gemma-2-9B"),
        ("Qwen/Qwen3-30B-A3B-Instruct-2507", "Qwen3-30B-A3B"),
        ("deepseek-ai/DeepSeek-R1", "DeepSeek-V3"),
        ("openai/gpt-oss-120b", "GPT-OSS-120B"),
        ("bigscience/bloom", "BLOOM-176B"),
        ("bloom-7b1", "BLOOM-7.1B"),
        ("google/vit-base-patch16-224", "ViT-B/16"),
        ("mistralai/Mistral-7B-Instruct-v0.2", "Mistral-7B-v0.2"),
        ("mistralai/Mixtral-8x7B-Instruct-v0.1", "Mixtral-8x7B"),
        ("EleutherAI/pythia-6.9b-deduped", "Pythia-6.9B"),
        ("vit-b/16", "ViT-B/16"),
        ("facebook/opt-30b", "OPT-30B"),
    ],
)
def test_a_name_as_people_type_it_finds_its_model(typed: str, name: str) -> None:
    assert load_model(typed).name == name


@pytest.mark.parametrize("name", preset_names())
def test_every_preset_is_found_and_has_a_source(name: str) -> None:
    assert load_model(name).name == name
    assert len(known_presets().presets[name].source) > 10


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        ("llama-3-9b", "did you mean Llama-3-8B"),
        ("mixtral", "did you mean Mi"),
        ("@@@", "give the path of a Hugging Face config.json, or sizes as layers="),
        ("ResNet-50", "is a vision network"),
        ("efficientnet_b0", "is a vision network"),
        ("", "unknown model ''"),
    ],
)
def test_an_unknown_name_is_one_line_with_the_cure(typed: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        load_model(typed)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_folding_keeps_versions_apart() -> None:
    assert fold("Llama-3.1-8B") != fold("Llama-31-8B")
    assert load_model("llama 3.1 8b").max_positions == 131072
    assert load_model("llama 3 8b").max_positions == 8192


@pytest.fixture
def edited(tmp_path: Path) -> Callable[[str, str], Path]:
    """A copy of the presets in which one text of gpt.toml is replaced."""

    def edit(old: str, new: str) -> Path:
        folder = tmp_path / "presets"
        shutil.copytree(FOLDER, folder, ignore=shutil.ignore_patterns("*.py", "__pycache__"))
        text = (folder / "gpt.toml").read_text()
        assert old in text
        (folder / "gpt.toml").write_text(text.replace(old, new, 1))
        return folder

    return edit


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("source = ", "sauce = ", "sauce"),
        ("columns = [", "columns = ", "gpt.toml"),
        ('["GPT-2", 768,', '["GPT-2",', "has 4 values"),
        ('"GPT-2-774M"', '"GPT-2-1.5B"', "names both"),
        ('"GPT-2-large" = [', '"GPT-2-huge" = [', "which no row is called"),
    ],
)
def test_a_wrong_file_of_presets_is_named(
    edited: Callable[[str, str], Path], old: str, new: str, message: str
) -> None:
    with pytest.raises(InputError, match=message) as caught:
        known_presets(edited(old, new))
    assert "gpt.toml" in str(caught.value)


def test_sizes_of_llama_2_make_llama_2() -> None:
    sizes = "layers=32,hidden=4096,heads=32,ffn=11008,vocab=32000"
    assert parameter_count(load_model(sizes)) == 6_738_415_616


def test_the_usual_gated_width_is_llama_s() -> None:
    spec = model_from_flags(layers=1, hidden=4096, heads=32, vocab=10, gated=True)
    assert spec.ffn == 11008


def test_sizes_of_gpt_2_make_gpt_2() -> None:
    spec = model_from_flags(layers=12, hidden=768, heads=12, vocab=50257, positions=1024)
    assert parameter_count(spec) == 124_439_808


def test_sizes_of_mixtral_make_mixtral() -> None:
    text = "layers=32 hidden=4096 heads=32 kv_heads=8 ffn=14336 vocab=32000 experts=8 topk=2"
    assert parameter_count(model_from_text(text)) == 46_702_792_704


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("layers=2,hidden=64,heads=4", "vocab missing"),
        ("layers=2,hidden=64,heads=5,vocab=9", "5 heads do not divide the hidden size 64"),
        ("layers=2,hidden=64,heads=4,kv_heads=3,vocab=9", "3 kv_heads do not divide 4 heads"),
        ("layers=0,hidden=64,heads=4,vocab=9", "layers is 0; it must be 1 or more"),
        ("layers=-2,hidden=64,heads=4,vocab=9", "layers is -2; it must be 1 or more"),
        ("layers=two,hidden=64,heads=4,vocab=9", "layers is 'two'; it must be a whole number"),
        ("layres=2", "no size is called 'layres'; did you mean layers"),
        ("qqqq=2", "no size is called 'qqqq'; known: name, layers"),
        ("layers=2,layers=3", "layers is given twice"),
        ("layers=2,hidden=64,heads=4,vocab=9,gated=yes", "gated is 'yes'; it must be true or"),
        ("layers=2,hidden=64,heads=4,vocab=9,experts=4", "topk is 0; it must be from 1 to 4"),
        ("layers=2,hidden=64,heads=4,vocab=9,experts=4,topk=5", "topk is 5; it must be from 1"),
    ],
)
def test_wrong_sizes_are_one_line_with_the_cure(text: str, message: str) -> None:
    with pytest.raises(InputError, match=r"^model: ") as caught:
        load_model(text)
    assert message in str(caught.value)
