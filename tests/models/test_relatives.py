"""Every row of `relatives.toml` counts what transformers builds, whichever way its flags stand."""

from __future__ import annotations

from typing import Any

import pytest
from huggingface_hub.errors import StrictDataclassClassValidationError
from tests.models.test_counts import DEEPSEEK, count_in_transformers

from ridgeline.models.config import spec_from_config
from ridgeline.models.counts import parameter_count
from ridgeline.models.families.relatives import READERS, KeyedFlag, QueryKeyNorm, Relative

transformers = pytest.importorskip("transformers")

SIZES = {
    "hidden_size": 96,
    "intermediate_size": 176,
    "num_hidden_layers": 4,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "vocab_size": 1000,
    "max_position_embeddings": 512,
    "num_experts": 8,
    "num_local_experts": 8,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 40,
    "n_shared_experts": 2,
    "shared_intermediate_size": 56,
    "first_k_dense_replace": 1,
    "n_group": 1,
    "topk_group": 1,
    "pad_token_id": 0,
    "num_shared_experts": 2,
    "moe_num_shared_experts": 2,
    "moe_num_experts": 8,
    "moe_topk": 2,
    "shared_expert_intermediate_size": 56,
    "dense_intermediate_size": 88,
    "n_embd": 96,
    "n_layer": 4,
    "n_head": 6,
    "dff": 176,
    "ffn_dim": 176,
    "num_layers": 4,
    "attention_heads": 6,
    "d_model": 96,
    "sliding_window": 64,
}


def row_of(family: str) -> Relative:
    row = READERS[family].args[0]
    assert isinstance(row, Relative)
    return row


def switches(row: Relative) -> set[str]:
    traits = (row.attention_bias, row.output_bias, row.mlp_bias, row.head_bias, row.qk_norm)
    keyed = (one for one in traits if isinstance(one, KeyedFlag | QueryKeyNorm))
    return {one.key for one in keyed if one.key is not None}


def assert_counts(family: str, **changes: Any) -> None:
    base = transformers.AutoConfig.for_model(family)
    keys = {name: size for name, size in SIZES.items() if hasattr(base, name)}
    if hasattr(base, "head_dim"):
        keys["head_dim"] = 16 if family == "helium" else 20  # its output is as wide as its input
    changed = {"model_type": family, **keys, "layer_types": None, **changes}
    try:
        config = transformers.AutoConfig.for_model(**changed)
    except StrictDataclassClassValidationError:
        assert changes, "the sizes themselves"
        return  # the class has no such model
    spec = spec_from_config(config.to_dict(), place="here", name=family)
    assert parameter_count(spec) == count_in_transformers(changed), changes
    # What a file leaves out has the default that the installed class has.
    bare = {name: value for name, value in config.to_diff_dict().items() if value is not None}
    spelled = spec_from_config({**keys, **bare}, place="here", name=family)
    assert parameter_count(spelled) == parameter_count(spec), "a default differs"


@pytest.mark.sweep(every=8)
@pytest.mark.parametrize("family", sorted(READERS))
def test_a_relative_of_llama_counts_what_transformers_builds(family: str) -> None:
    assert_counts(family)
    for key in switches(row_of(family)):
        for value in (False, True):
            assert_counts(family, **{key: value})
    for tied in (False, True):
        assert_counts(family, tie_word_embeddings=tied)


@pytest.mark.parametrize("family", ["glm4_moe_lite", "minicpm3", "youtu"])
def test_latent_attention_under_other_names_counts_what_transformers_builds(family: str) -> None:
    base = transformers.AutoConfig.for_model(family)
    keys = {name: size for name, size in DEEPSEEK.items() if hasattr(base, name)}
    for tied in (False, True):
        changed = {"model_type": family, **keys, "tie_word_embeddings": tied}
        config = transformers.AutoConfig.for_model(**changed)
        spec = spec_from_config(config.to_dict(), place="here", name=family)
        assert parameter_count(spec) == count_in_transformers(changed)
    bare = spec_from_config({"model_type": family, **DEEPSEEK}, place="here", name=family)
    assert bare.tied_embeddings is bool(base.tie_word_embeddings)
