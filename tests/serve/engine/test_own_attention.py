"""Families with attention of their own: the tokens of the plain model, however a prompt is cut."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.serve.engine.workloads import answers, finished, greedy, plain_greedy, tiny_engine
from tests.serve.model.tiny_families import OWN_ATTENTION, VOCAB, tiny

from ridgeline.errors import InputError
from ridgeline.serve.config import EngineConfig, SpeculationConfig
from ridgeline.serve.model.load import load

WAYS: dict[str, dict[str, Any]] = {
    "paged": {},
    "chunks of seven": {"max_tokens_per_step": 7},
    "guessed along": {"speculation": SpeculationConfig(kind="ngram", always=True)},
}


@pytest.mark.sweep(every=3)
@pytest.mark.parametrize("family", OWN_ATTENTION)
def test_every_way_gives_the_tokens_of_the_plain_model(family: str, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    tiny(family).save_pretrained(tmp_path)
    plain = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    generator = torch.Generator().manual_seed(0)
    asked = {
        str(length): torch.randint(3, VOCAB, (length,), generator=generator).tolist()
        for length in (1, 6, 23, 40)
    }
    asked["like the last"] = [*asked["40"][:32], 5, 6]
    expected = {(name, 0): plain_greedy(plain, one, 8) for name, one in asked.items()}
    for way, changes in WAYS.items():
        engine = tiny_engine(tmp_path, **changes)
        for name, prompt in asked.items():
            engine.handle(greedy(name, prompt, 8))
        assert answers(finished(engine)) == expected, way


def test_a_bias_that_the_cache_would_round_away_is_refused(tmp_path: Path) -> None:
    tiny("mpt").save_pretrained(tmp_path)
    config = EngineConfig(model=str(tmp_path), dtype="fp32", device="cpu", kv_dtype="int8")
    with pytest.raises(InputError, match="--kv-dtype int8: keys of the family mpt carry a bias"):
        load(config)


def test_falcon_with_biases_is_refused_in_one_line(tmp_path: Path) -> None:
    tiny("falcon", alibi=True, new_decoder_architecture=False).save_pretrained(tmp_path)
    with pytest.raises(InputError, match="family falcon cannot be served over a paged KV cache"):
        load(EngineConfig(model=str(tmp_path), dtype="fp32", device="cpu"))
