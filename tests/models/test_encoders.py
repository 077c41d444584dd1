"""Every row of `encoders.toml` counts what transformers builds, with each head."""

from __future__ import annotations

from typing import Any

import pytest
from tests.models.test_counts import count_in_transformers

from ridgeline.errors import InputError
from ridgeline.models.config import NOT_MODELLED, spec_from_config
from ridgeline.models.counts import parameter_count
from ridgeline.models.families import readers
from ridgeline.models.families.encoders import ENCODERS
from ridgeline.models.spec import is_windowed

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

SIZES = {
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "intermediate_size": 96,
    "dim": 64,
    "n_layers": 4,
    "n_heads": 4,
    "hidden_dim": 96,
    "vocab_size": 97,
    "max_position_embeddings": 65,
    "pad_token_id": 0,
    "num_labels": 7,
}
HEADS = ("MaskedLM", "", "SequenceClassification", "TokenClassification")
DISTANCES = {"relative_attention": True, "pos_att_type": ["p2c", "c2p"]}
VARIANTS: dict[str, list[dict[str, Any]]] = {
    "deberta-v2": [
        DISTANCES,
        {
            **DISTANCES,
            "position_buckets": 16,
            "position_biased_input": False,
            "share_att_key": True,
            "norm_rel_ebd": "layer_norm",
            "conv_kernel_size": 3,
        },
    ],
    "electra": [{"embedding_size": 16}],
    "esm": [{"position_embedding_type": "rotary"}],
    "eurobert": [{"attention_bias": True, "mlp_bias": True, "num_key_value_heads": 2}],
    "modernbert": [{"attention_bias": True, "mlp_bias": True, "decoder_bias": False}],
}


def keys_of(family: str, changes: dict[str, Any]) -> dict[str, Any]:
    base = transformers.AutoConfig.for_model(family)
    known = {**base.to_dict(), **dict.fromkeys(("num_labels",))}
    sizes = {name: size for name, size in SIZES.items() if name in known}
    return {"model_type": family, **sizes, **changes}


@pytest.mark.sweep(every=6)
@pytest.mark.parametrize("family", sorted(ENCODERS))
def test_an_encoder_counts_what_transformers_builds(family: str) -> None:
    for changes in [{}, *VARIANTS.get(family, [])]:
        keys = keys_of(family, changes)
        config = transformers.AutoConfig.for_model(**keys)
        for head in HEADS:
            auto = getattr(transformers, f"AutoModelFor{head}" if head else "AutoModel")
            with torch.device("meta"):
                model = auto.from_config(config)
            named = {**keys, "architectures": [type(model).__name__]}
            want = sum(one.numel() for one in model.parameters())
            for values in (named, {**config.to_dict(), **named}):
                spec = spec_from_config(values, place="here", name=family)
                assert parameter_count(spec) == want, (changes, head)
                assert spec.kind == "encoder"


def test_of_three_layers_of_modernbert_two_see_half_of_local_attention_to_each_side() -> None:
    spec = spec_from_config(keys_of("modernbert", {}), place="here", name="mine")
    assert [is_windowed(spec, layer) for layer in range(4)] == [False, True, True, False]
    assert spec.sliding_window == 64


def test_a_classifier_of_a_causal_model_is_one_layer() -> None:
    keys = {"model_type": "llama", **SIZES, "architectures": ["LlamaForSequenceClassification"]}
    spec = spec_from_config(keys, place="here", name="mine")
    assert parameter_count(spec) == count_in_transformers(keys)


@pytest.mark.parametrize("family", sorted(NOT_MODELLED))
def test_what_cannot_be_counted_is_refused_with_the_reason(family: str) -> None:
    assert family not in readers()
    with pytest.raises(InputError) as caught:
        spec_from_config({"model_type": family}, place="here", name="mine")
    assert str(caught.value).startswith(f"here: model_type is {family!r}, which is not modelled: ")
