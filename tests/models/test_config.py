"""Reading config.json: what transformers writes, what is wrong with a file, multimodal ones."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import ridgeline.models.config
from ridgeline.errors import InputError
from ridgeline.models import (
    active_parameter_count,
    load_model,
    parameter_count,
    preset,
    read_config,
    spec_from_config,
)
from ridgeline.models.families import readers
from ridgeline.models.presets import known_presets

LLAMA = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 128,
    "vocab_size": 100,
}
SPARSE = {**LLAMA, "model_type": "qwen3_moe", "num_experts": 8, "num_experts_per_tok": 2}
MIXTURE = {
    "num_key_value_heads": 2,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 8,
}
DEBERTA = {
    **LLAMA,
    "model_type": "deberta-v2",
    "max_position_embeddings": 64,
    "relative_attention": True,
}
ONE_OF_EACH_FAMILY = [
    "Llama-3.2-1B",
    "Mistral-7B-v0.1",
    "Qwen2.5-7B",
    "Qwen3-8B",
    "Gemma-7B",
    "Gemma-2-9B",
    "Gemma-3-4B",
    "Phi-2",
    "Phi-3-mini",
    "Falcon-7B",
    "Falcon-40B",
    "BLOOM-7.1B",
    "MPT-7B",
    "OPT-350M",
    "GPT-NeoX-20B",
    "GPT-2",
    "Mixtral-8x7B",
    "Qwen1.5-MoE-A2.7B",
    "Qwen3-30B-A3B",
    "DeepSeek-V2",
    "DeepSeek-V3",
    "GPT-OSS-120B",
    "Nemotron-4-15B",
    "BERT-base",
    "T5-3B",
    "ViT-B/16",
]


def write(folder: Path, config: Any) -> Path:
    file = folder / "config.json"
    file.write_text(config if isinstance(config, str) else json.dumps(config))
    return file


@pytest.mark.sweep(every=6)
@pytest.mark.parametrize("name", ONE_OF_EACH_FAMILY)
def test_what_transformers_saves_is_the_preset(name: str, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    keys = dict(known_presets().presets[name].config)
    config = transformers.AutoConfig.for_model(keys.pop("model_type"), **keys)
    config.save_pretrained(tmp_path)
    read = read_config(tmp_path)
    known = preset(name)
    assert parameter_count(read) == parameter_count(known)
    shape = ("layers", "hidden", "heads", "kv_heads", "head_dim", "ffn", "vocab", "experts")
    assert [getattr(read, field) for field in shape] == [getattr(known, field) for field in shape]
    assert read.sliding_window == known.sliding_window
    assert read.full_attention_every == known.full_attention_every


def test_a_file_and_its_folder_are_the_same_model(tmp_path: Path) -> None:
    file = write(tmp_path, LLAMA)
    assert read_config(file) == read_config(tmp_path) == load_model(str(tmp_path))
    assert read_config(file).name == tmp_path.name


def test_infinity_as_python_writes_it_is_no_error(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps({**LLAMA, "time_step_limit": [0.0, float("inf")]}))
    assert read_config(file) == read_config(write(tmp_path, LLAMA))


def test_mt5_is_counted_as_its_own_class_is(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    sizes = {"vocab_size": 100, "d_model": 24, "d_kv": 8, "d_ff": 40, "num_layers": 2}
    config = transformers.MT5Config(**sizes, num_heads=3, num_decoder_layers=1)
    model = transformers.MT5ForConditionalGeneration(config)
    spec = spec_from_config(config.to_dict(), place="here", name="mt5")
    assert parameter_count(spec) == sum(one.numel() for one in model.parameters())


def test_the_text_of_emu3_is_counted_as_its_own_class_is() -> None:
    transformers = pytest.importorskip("transformers")
    sizes = {"vocab_size": 100, "hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    config = transformers.Emu3TextConfig(**sizes, **heads, pad_token_id=0)
    model = transformers.Emu3ForCausalLM(config)
    values = {"model_type": "emu3", "text_config": config.to_dict()}
    spec = spec_from_config(values, place="here", name="emu3")
    assert parameter_count(spec) == sum(one.numel() for one in model.parameters())


def test_a_local_folder_wins_when_it_is_written_as_a_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "gpt2").mkdir()
    write(tmp_path / "gpt2", LLAMA)
    assert load_model("gpt2").family == "gpt2"
    assert load_model("./gpt2").family == "llama"


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("{not json", "not JSON"),
        ("[1, 2]", "Expected `object`, got `array`; give a config.json"),
        ({}, "model_type is missing; add it, as transformers has it (docs"),
        ({**LLAMA, "model_type": "lama"}, "model_type 'lama' is not known; did you mean llama"),
        ({**LLAMA, "model_type": "xyzzy"}, "model_type 'xyzzy' is not known; docs"),
        ({**LLAMA, "model_type": "resnet"}, "a vision network"),
        ({**LLAMA, "model_type": "convnext"}, "a vision network"),
        ({**LLAMA, "model_type": "text_unheard_of"}, "'text_unheard_of' is not known; docs"),
        ({**LLAMA, "model_type": "bart", "is_encoder_decoder": True}, "an encoder-decoder; of"),
        ({**LLAMA, "model_type": 7}, "model_type is 7; it must be a string"),
        ({**LLAMA, "vocab_size": None}, "vocab_size is missing; add it as a whole number"),
        ({**LLAMA, "hidden_size": -64}, "hidden_size is -64; it must be a whole number from 1"),
        ({**LLAMA, "hidden_size": 10**12}, "hidden_size is 1000000000000; it must be"),
        ({**LLAMA, "num_hidden_layers": "2"}, "num_hidden_layers is '2'; it must be"),
        ({**LLAMA, "num_hidden_layers": True}, "num_hidden_layers is True; it must be"),
        ({**LLAMA, "hidden_size": 64.5}, "hidden_size is 64.5; it must be"),
        (
            {**LLAMA, "num_attention_heads": 5},
            "num_attention_heads is 5; it must divide the hidden",
        ),
        ({**LLAMA, "num_key_value_heads": 3}, "num_key_value_heads is 3; it must divide the 4"),
        ({**LLAMA, "tie_word_embeddings": "no"}, "tie_word_embeddings is 'no'; it must be true or"),
        ({**LLAMA, "architectures": "Llama"}, "architectures is 'Llama'; it must be a list of"),
        (SPARSE, "moe_intermediate_size is missing"),
        ({**SPARSE, "moe_intermediate_size": 8, "num_experts_per_tok": 9}, "only 8 experts"),
        ({**SPARSE, "moe_intermediate_size": 8, "mlp_only_layers": [9]}, "names layer 9; the mod"),
        ({**SPARSE, "moe_intermediate_size": 8, "mlp_only_layers": [-1]}, "a list of whole numb"),
        ({**LLAMA, "model_type": "mistral", "layer_types": ["full_attention"]}, "lists 1 layers"),
        (
            {**LLAMA, "model_type": "mistral", "layer_types": ["full_attention", "chunked"]},
            "layer_types names 'chunked'",
        ),
        (
            {**LLAMA, "model_type": "mistral", "layer_types": ["sliding_attention"] * 2},
            "sliding_window is missing",
        ),
        ({**LLAMA, "model_type": "mpt", "attn_config": 3}, "attn_config is 3; it must be an obj"),
        ({**LLAMA, "model_type": "mpt", "no_bias": False}, "no_bias is false"),
        (
            {**LLAMA, "model_type": "vit", "image_size": 225, "patch_size": 16},
            "patch_size is 16; it must divide the image size 225",
        ),
        ({**LLAMA, "model_type": "bert"}, "max_position_embeddings is missing; add it as a whole"),
        ({**LLAMA, "model_type": "deepseek_v3"}, "q_lora_rank is missing; add the rank, or null"),
        (
            {**LLAMA, **MIXTURE, "model_type": "mimo_v2_flash", "hybrid_layer_pattern": [1]},
            "hybrid_layer_pattern lists 1 layers; the model has 2",
        ),
        (
            {**LLAMA, **MIXTURE, "model_type": "llama4_text", "no_rope_layers": [1]},
            "no_rope_layers lists 1 layers; the model has 2",
        ),
        (
            {**LLAMA, "model_type": "gemma4_text", "per_layer_config": {"0": 1}},
            "per_layer_config: 0 is 1; it must be an object",
        ),
        (
            {
                **LLAMA,
                "model_type": "gemma4_text",
                "per_layer_config": {"0": {"head_dim": 8}, "1": {"head_dim": 16}},
            },
            "per_layer_config must say the same of all the layers that it lists",
        ),
        (
            {**LLAMA, "model_type": "exaone4", "sliding_window_pattern": "LX"},
            "sliding_window_pattern is 'LX'; its letters must be L",
        ),
        ({**DEBERTA, "max_relative_positions": "x"}, "max_relative_positions is 'x'; it must be"),
        ({**DEBERTA, "pos_att_type": 5}, "pos_att_type is 5; it must be names"),
    ],
)
def test_a_bad_file_is_one_line_with_its_name_and_the_key(
    config: Any, message: str, tmp_path: Path
) -> None:
    file = write(tmp_path, config)
    with pytest.raises(InputError) as caught:
        read_config(file)
    assert message in str(caught.value)
    assert str(file) in str(caught.value)
    assert "\n" not in str(caught.value)


PRESET_KEYS = [dict(one.config) for one in known_presets().presets.values()]
HUB = json.loads(Path(__file__).with_name("hub_configs.json").read_text())
HUB_KEYS = [one["config"].get("text_config", one["config"]) for one in HUB]
SIZES = {
    **LLAMA,
    **MIXTURE,
    "num_hidden_layers": 3,
    "max_position_embeddings": 64,
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 8,
    "v_head_dim": 8,
    "n_routed_experts": 8,
    "sliding_window": 8,
    "ffn_dim": 128,
    "hidden_dim": 128,
}
FAMILY_KEYS = [{**SIZES, "model_type": family} for family in sorted(readers())]
KEYS = st.sampled_from(PRESET_KEYS + HUB_KEYS) | st.sampled_from(FAMILY_KEYS)
LISTS = (
    "architectures", "attention_types", "block_ffn_dim_multiplier", "head_dim",
    "hybrid_layer_pattern", "layer_types", "mlp_layer_types", "mlp_only_layers",
    "no_rope_layers", "per_layer_config", "pos_att_type", "sliding_window",
    "sliding_window_pattern",
)  # fmt: skip
ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=4,
)


@given(keys=KEYS, value=ANY_JSON, data=st.data())
def test_any_value_of_any_key_is_read_or_refused_in_one_line(
    keys: dict[str, Any], value: Any, data: st.DataObject
) -> None:
    key = data.draw(st.sampled_from(sorted({*keys, *LISTS})))
    refused = ""
    spec = preset("GPT-2")
    try:
        spec = spec_from_config({**keys, key: value}, place="here", name="mangled")
    except InputError as error:
        refused = str(error)
    assert not refused or refused.startswith("here: ")
    assert "\n" not in refused
    assert parameter_count(spec) >= active_parameter_count(spec) > 0


def test_a_file_that_is_not_there_says_what_to_give(tmp_path: Path) -> None:
    for path in (tmp_path / "none.json", tmp_path):
        with pytest.raises(InputError, match=r"no such file; give a config\.json"):
            read_config(path)


def test_text_that_is_not_utf8_is_not_json(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(b'{"model_type": "\xff\xfe"}')
    with pytest.raises(InputError, match="byte 16 is not UTF-8 text"):
        read_config(tmp_path)


def test_a_multimodal_file_is_its_language_model(tmp_path: Path) -> None:
    outer = {"model_type": "gemma3", "architectures": ["Gemma3ForConditionalGeneration"]}
    # What google/gemma-3-4b-it writes: the rest are its class's defaults.
    inner = {
        "model_type": "gemma3_text",
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "num_hidden_layers": 34,
        "sliding_window": 1024,
    }
    read = read_config(write(tmp_path, {**outer, "text_config": inner, "vision_config": {}}))
    assert parameter_count(read) == parameter_count(preset("Gemma-3-4B")) == 3_880_263_168


def test_whether_a_nested_model_is_tied_is_read_outside(tmp_path: Path) -> None:
    # LLaVA-1.5 7B: a Vicuna whose sizes are all Llama's defaults, with 64 more rows.
    inner = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 32064}
    outer = {"model_type": "llava", "tie_word_embeddings": True, "text_config": inner}
    tied = parameter_count(read_config(write(tmp_path, outer)))
    untied = parameter_count(read_config(write(tmp_path, {**outer, "tie_word_embeddings": False})))
    assert untied - tied == 32064 * 4096
    assert untied == 6_738_415_616 + 2 * 64 * 4096


def test_a_complaint_about_a_nested_key_names_the_part(tmp_path: Path) -> None:
    file = write(tmp_path, {"model_type": "llava", "text_config": {**LLAMA, "vocab_size": 0}})
    with pytest.raises(InputError, match=r"config\.json: text_config: vocab_size is 0"):
        read_config(file)


def test_nested_defaults_are_those_of_transformers() -> None:
    transformers = pytest.importorskip("transformers")
    file = Path(ridgeline.models.config.__file__).parent / "families" / "defaults.toml"
    for kind, keys in tomllib.loads(file.read_text()).items():
        made = type(transformers.AutoConfig.for_model(kind))
        assert {key: getattr(made, key) for key in keys} == keys, kind


@pytest.mark.parametrize(
    ("name", "window", "every"),
    [
        ("Mistral-7B-v0.1", 4096, 0),
        ("Mistral-7B-v0.3", 0, 1),
        ("Gemma-2-9B", 4096, 2),
        ("Gemma-3-27B", 1024, 6),
        ("GPT-OSS-20B", 128, 2),
        ("Qwen2.5-7B", 0, 1),
    ],
)
def test_windows_are_as_the_model_s_paper_has_them(name: str, window: int, every: int) -> None:
    spec = preset(name)
    assert (spec.sliding_window, spec.full_attention_every) == (window, every)


def test_queries_of_latent_attention_are_as_wide_as_both_parts() -> None:
    spec = preset("DeepSeek-V3")
    assert (spec.heads, spec.kv_heads, spec.head_dim) == (128, 128, 192)
