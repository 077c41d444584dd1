"""Counts against Hugging Face transformers on the meta device, and against published totals."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeline.models.config import spec_from_config
from ridgeline.models.counts import (
    Parameters,
    active_parameter_count,
    embedding_parameters,
    layer_parameters,
    parameter_count,
    parameter_parts,
)
from ridgeline.models.flags import model_from_flags
from ridgeline.models.presets import known_presets, preset, preset_names
from ridgeline.models.spec import num_layers

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

WITHOUT_A_LANGUAGE_HEAD = {
    "t5": "T5ForConditionalGeneration",
    "vit": "ViTForImageClassification",
    "bert": "BertForMaskedLM",
}


def count_in_transformers(config: dict[str, Any]) -> int:
    """Parameters of the model that transformers builds from these keys; shared ones once."""
    keys = dict(config)
    kind = keys.pop("model_type")
    named = keys.pop("architectures", [WITHOUT_A_LANGUAGE_HEAD.get(kind)])[0]
    if keys.get("q_lora_rank") == 0:  # TOML has no null
        keys["q_lora_rank"] = None
    if kind == "internlm":  # not in transformers: a Llama whose four projections have biases
        kind, keys["attention_bias"] = "llama", keys.pop("bias")
    built = transformers.AutoConfig.for_model(kind, **keys)
    with torch.device("meta"):
        if named:
            model = getattr(transformers, named)(built)
        else:
            model = transformers.AutoModelForCausalLM.from_config(built)
    count = sum(p.numel() for p in model.parameters())
    if kind == "t5" and not keys.get("tie_word_embeddings", True):
        # Version 5 of transformers ties every T5's head; published 1.1 checkpoints have their own.
        count += model.lm_head.weight.numel()
    return count


@pytest.mark.sweep(every=24)
@pytest.mark.parametrize("name", preset_names())
def test_a_preset_counts_what_transformers_builds(name: str) -> None:
    assert parameter_count(preset(name)) == count_in_transformers(
        known_presets().presets[name].config
    )


SMALL = {"hidden_size": 64, "num_hidden_layers": 5, "num_attention_heads": 4, "vocab_size": 97}
LLAMA_LIKE = {**SMALL, "num_key_value_heads": 2, "intermediate_size": 96}
DEEPSEEK = {
    **LLAMA_LIKE,
    "num_key_value_heads": 4,
    "kv_lora_rank": 24,
    "q_lora_rank": 40,
    "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 8,
    "v_head_dim": 20,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "n_shared_experts": 2,
    "moe_intermediate_size": 48,
    "first_k_dense_replace": 2,
    "n_group": 1,
    "topk_group": 1,
}
OPT = {**SMALL, "ffn_dim": 96, "max_position_embeddings": 33}
MPT = {"d_model": 64, "n_heads": 4, "n_layers": 5, "vocab_size": 97}
QWEN_MOE = {**LLAMA_LIKE, "num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 40}
BERT = {
    **SMALL,
    "model_type": "bert",
    "intermediate_size": 96,
    "max_position_embeddings": 33,
}
T5 = {"d_model": 64, "d_kv": 24, "d_ff": 96, "num_layers": 3, "num_heads": 4, "vocab_size": 97}
VIT = {**SMALL, "model_type": "vit", "intermediate_size": 96, "image_size": 48, "patch_size": 16}
VARIANTS = [
    {"model_type": "llama", **LLAMA_LIKE, "attention_bias": True, "mlp_bias": True},
    {"model_type": "llama", **LLAMA_LIKE, "head_dim": 24, "tie_word_embeddings": True},
    {"model_type": "llama", **LLAMA_LIKE, "architectures": ["LlamaModel"]},
    {
        "model_type": "llama",
        **LLAMA_LIKE,
        "architectures": ["LlamaForSequenceClassification"],
        "num_labels": 7,
    },
    {"model_type": "mistral", **LLAMA_LIKE, "head_dim": 24, "sliding_window": None},
    {"model_type": "qwen3", **LLAMA_LIKE, "head_dim": 24, "attention_bias": True},
    {"model_type": "olmo2", **LLAMA_LIKE},
    {"model_type": "gemma", **LLAMA_LIKE, "head_dim": 24, "attention_bias": True},
    {"model_type": "gemma2", **LLAMA_LIKE, "head_dim": 24},
    {"model_type": "gemma3_text", **LLAMA_LIKE, "head_dim": 24},
    {"model_type": "nemotron", **LLAMA_LIKE, "attention_bias": True, "mlp_bias": True},
    {"model_type": "phi", **LLAMA_LIKE, "qk_layernorm": True},
    {"model_type": "gpt2", **SMALL, "n_positions": 33, "n_inner": 80},
    {"model_type": "gpt_neox", **SMALL, "intermediate_size": 96, "attention_bias": False},
    {"model_type": "gpt_neox", **SMALL, "intermediate_size": 96, "use_parallel_residual": False},
    {"model_type": "opt", **OPT, "enable_bias": False},
    {"model_type": "opt", **OPT, "word_embed_proj_dim": 16},
    {"model_type": "bloom", **SMALL},
    {"model_type": "mpt", **MPT},
    {"model_type": "falcon", **SMALL, "bias": True},
    {"model_type": "falcon", **SMALL, "multi_query": False, "parallel_attn": False},
    {"model_type": "falcon", **SMALL, "new_decoder_architecture": True, "num_kv_heads": 2},
    {
        "model_type": "falcon",
        **SMALL,
        "new_decoder_architecture": True,
        "num_kv_heads": 2,
        "num_ln_in_parallel_attn": 1,
    },
    {"model_type": "falcon", **SMALL, "ffn_hidden_size": 80},
    {"model_type": "mixtral", **LLAMA_LIKE, "num_local_experts": 3, "num_experts_per_tok": 2},
    {"model_type": "qwen2_moe", **QWEN_MOE, "shared_expert_intermediate_size": 72},
    {
        "model_type": "qwen2_moe",
        **QWEN_MOE,
        "shared_expert_intermediate_size": 72,
        "decoder_sparse_step": 2,
        "qkv_bias": False,
    },
    {"model_type": "qwen3_moe", **QWEN_MOE, "mlp_only_layers": [0, 1], "head_dim": 24},
    {"model_type": "gpt_oss", **LLAMA_LIKE, "num_local_experts": 3, "num_experts_per_tok": 2},
    {"model_type": "deepseek_v2", **DEEPSEEK},
    {"model_type": "deepseek_v3", **DEEPSEEK, "attention_bias": True},
    {"model_type": "deepseek_v3", **DEEPSEEK, "q_lora_rank": None},
    BERT,
    {**BERT, "architectures": ["BertModel"]},
    {**BERT, "architectures": ["BertForPreTraining"], "type_vocab_size": 3},
    {"model_type": "t5", **T5, "num_decoder_layers": 2, "relative_attention_num_buckets": 8},
    {"model_type": "t5", **T5, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
    VIT,
    {**VIT, "architectures": ["ViTModel"], "qkv_bias": False, "num_channels": 1},
]


@pytest.mark.sweep(every=5)
@pytest.mark.parametrize("config", VARIANTS, ids=lambda config: config["model_type"])
def test_every_key_that_changes_the_count_is_read(config: dict[str, Any]) -> None:
    spec = spec_from_config(config, place="here", name="variant")
    assert parameter_count(spec) == count_in_transformers(config)


def test_learned_positions_of_mpt_are_one_vector_each() -> None:
    # transformers builds every MPT as if with ALiBi; llm-foundry's models without it have a table.
    alibi = {"model_type": "mpt", **MPT, "max_seq_len": 33}
    learned = {**alibi, "attn_config": {"alibi": False}}
    more = parameter_count(spec_from_config(learned, place="here", name="learned"))
    less = parameter_count(spec_from_config(alibi, place="here", name="alibi"))
    assert more - less == 33 * 64


PUBLISHED = {name: one.published_parameters for name, one in known_presets().presets.items()}


@pytest.mark.parametrize("name", [name for name, total in PUBLISHED.items() if total])
def test_the_total_that_the_publisher_shows_is_ours(name: str) -> None:
    assert parameter_count(preset(name)) == PUBLISHED[name]


ROUNDED_TOTALS = {
    # name: (total, unit), billions as the source prints them
    "GPT-3-175B": (174.6, 0.1),  # arXiv 2005.14165, table D.1
    "GPT-3-13B": (12.85, 0.01),  # table D.1
    "GPT-3-6.7B": (6.66, 0.01),  # table D.1
    "GPT-3-2.7B": (2.65, 0.01),  # table D.1
    "GPT-3-760M": (0.760, 0.001),  # table D.1
    "Nemotron-4-340B": (341, 1),  # arXiv 2406.11704, table 1: 9.4 + 331.6
    "Nemotron-4-15B": (15.6, 0.1),  # arXiv 2402.16819, section 2
    "DeepSeek-V3": (671, 1),  # arXiv 2412.19437, abstract
    "Qwen3.5-27B": (27, 1),  # its card; the language model alone
    "Kimi-K2": (1026, 1),  # 1.04 trillion in arXiv 2507.20534; 1,026 billion on its hub page
    "DeepSeek-V2": (236, 1),  # arXiv 2405.04434, abstract
    "DeepSeek-V2-Lite": (15.7, 0.1),  # arXiv 2405.04434, appendix B
    "Qwen1.5-MoE-A2.7B": (14.3, 0.1),  # Qwen/Qwen1.5-MoE-A2.7B model card
    "Qwen2-57B-A14B": (57.4, 0.1),  # Qwen/Qwen2-57B-A14B model card
    "Moonlight-16B-A3B": (15.96, 0.05),  # arXiv 2502.16982: 15.29 without embedding
}


@pytest.mark.parametrize("name", ROUNDED_TOTALS)
def test_the_total_that_a_paper_prints_is_ours(name: str) -> None:
    total, unit = ROUNDED_TOTALS[name]
    assert parameter_count(preset(name)) / 1e9 == pytest.approx(total, abs=unit / 2)


NON_EMBEDDING = {
    # exact, arXiv 2304.01373, table 1
    "Pythia-70M": (18_915_328, 0),
    "Pythia-160M": (85_056_000, 0),
    "Pythia-410M": (302_311_424, 0),
    "Pythia-1B": (805_736_448, 0),
    "Pythia-1.4B": (1_208_602_624, 0),
    "Pythia-2.8B": (2_517_652_480, 0),
    "Pythia-6.9B": (6_444_163_072, 0),
    "Pythia-12B": (11_327_027_200, 0),
    # millions: arXiv 2403.08295, table 2; 2408.00118, table 2; 2503.19786, table 1
    "Gemma-2B": (1_981e6, 1e6),
    "Gemma-7B": (7_751e6, 6e5),
    "Gemma-2-2B": (2_024e6, 6e5),
    "Gemma-2-9B": (8_324e6, 6e5),
    "Gemma-2-27B": (26_047e6, 6e5),
    "Gemma-3-1B": (698e6, 6e5),
    "Gemma-3-4B": (3_209e6, 6e5),
    "Gemma-3-12B": (10_759e6, 6e5),
    "Gemma-3-27B": (25_600e6, 6e5),
    # billions: arXiv 2402.16819, section 2; 2406.11704, table 1
    "Nemotron-4-15B": (12.5e9, 5e7),
    "Nemotron-4-340B": (331.6e9, 5e7),
}


@pytest.mark.parametrize("name", NON_EMBEDDING)
def test_what_is_not_embedding_is_what_a_paper_prints(name: str) -> None:
    parts = parameter_parts(preset(name))
    printed, unit = NON_EMBEDDING[name]
    assert parts.total - parts.embedding - parts.head == pytest.approx(printed, abs=unit)


ACTIVE = {
    # billions of active parameters, embedding and head included, with the unit printed
    "Mixtral-8x7B": (12.9, 0.1),  # arXiv 2401.04088, section 1: 13; mistral.ai: 12.9
    "Mixtral-8x22B": (39, 1),  # mistral.ai/news/mixtral-8x22b
    "DeepSeek-V3": (37, 1.2),  # arXiv 2412.19437: 37; 37.55 with the embedding
    "DeepSeek-V2": (21, 1),  # arXiv 2405.04434
    "Qwen3-30B-A3B": (3.3, 0.2),  # its model card cuts 3.35 off
    "Qwen3-235B-A22B": (22, 1),  # arXiv 2505.09388, section 2
    "Qwen1.5-MoE-A2.7B": (2.7, 0.1),  # its model card
}


@pytest.mark.parametrize("name", ACTIVE)
def test_active_parameters_are_those_that_one_token_meets(name: str) -> None:
    active, unit = ACTIVE[name]
    assert active_parameter_count(preset(name)) / 1e9 == pytest.approx(active, abs=0.5 * unit)


@pytest.mark.parametrize(
    ("name", "mlp", "attention", "ends", "active"),
    [("GPT-OSS-120B", 114.71, 0.96, 1.16, 5.13), ("GPT-OSS-20B", 19.12, 0.64, 1.16, 3.61)],
)
def test_gpt_oss_splits_as_its_model_card_does(
    name: str, mlp: float, attention: float, ends: float, active: float
) -> None:
    spec = preset(name)
    parts = parameter_parts(spec)
    # arXiv 2508.10925, table 1; active there leaves the embedding out but keeps the head.
    assert (parts.routed_experts + parts.router) / 1e9 == pytest.approx(mlp, abs=0.005)
    assert parts.attention / 1e9 == pytest.approx(attention, abs=0.005)
    assert (parts.embedding + parts.head) / 1e9 == pytest.approx(ends, abs=0.005)
    without_embedding = active_parameter_count(spec) - embedding_parameters(spec)
    assert without_embedding / 1e9 == pytest.approx(active, abs=0.005)


@pytest.mark.parametrize("name", ["Llama-3-8B", "GPT-2", "BERT-base", "ViT-B/16", "T5-3B"])
def test_every_parameter_of_a_dense_model_is_active(name: str) -> None:
    spec = preset(name)
    assert active_parameter_count(spec) == parameter_count(spec)


@pytest.mark.sweep(every=10)
@pytest.mark.parametrize("name", preset_names())
def test_layers_and_ends_add_up_to_the_model(name: str) -> None:
    spec = preset(name)
    layers = sum(layer_parameters(spec, layer).total for layer in range(num_layers(spec)))
    parts = parameter_parts(spec)
    final = parts.norms - sum(
        layer_parameters(spec, layer).norms for layer in range(num_layers(spec))
    )
    assert layers + parts.embedding + parts.head + final + parts.other == parts.total


def test_only_the_first_layers_of_deepseek_are_dense() -> None:
    spec = preset("DeepSeek-V3")
    dense = [bool(layer_parameters(spec, layer).dense_mlp) for layer in range(spec.layers)]
    assert dense == [True] * 3 + [False] * 58


def test_a_layer_that_is_not_there_has_no_parameters() -> None:
    with pytest.raises(IndexError, match="has 32 layers; there is no layer 32"):
        layer_parameters(preset("Llama-3-8B"), 32)


def test_a_tied_head_stores_nothing_and_an_untied_one_the_vocabulary() -> None:
    tied = preset("GPT-2")
    untied = msgspec.structs.replace(tied, tied_embeddings=False)
    assert parameter_parts(tied).head == 0
    assert parameter_parts(untied).head == tied.vocab * tied.hidden


def test_named_extra_tensors_count() -> None:
    spec = msgspec.structs.replace(preset("GPT-2"), extra={"adapter": 1000})
    assert parameter_count(spec) == parameter_count(preset("GPT-2")) + 1000


@given(
    layers=st.integers(1, 12),
    heads=st.sampled_from([2, 4, 8]),
    width=st.sampled_from([8, 16, 64]),
    experts=st.integers(2, 16),
    data=st.data(),
)
def test_what_is_not_active_are_the_experts_that_a_token_misses(
    layers: int, heads: int, width: int, experts: int, data: st.DataObject
) -> None:
    top_k = data.draw(st.integers(1, experts))
    sizes = {"layers": layers, "hidden": heads * width, "heads": heads, "vocab": 100}
    spec = model_from_flags(**sizes, experts=experts, topk=top_k, ffn=24)
    idle = parameter_count(spec) - active_parameter_count(spec)
    one_expert = layer_parameters(spec, 0).routed_experts // experts * layers
    assert idle == one_expert * (experts - top_k)


@given(st.integers(0, 50), st.integers(0, 50))
def test_parts_add_and_multiply_part_by_part(first: int, times: int) -> None:
    one = Parameters(attention=first, norms=1, head=2)
    assert (one * times).total == times * one.total
    assert (one + one) == one * 2
