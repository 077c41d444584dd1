"""A checkpoint read layer by layer: the model that transformers reads, and no file left mapped."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.serve.engine.workloads import LIBRARY, write_tiny_llama
from tests.serve.model.tiny_families import FITTING, tiny
from transformers import AutoConfig, AutoModelForCausalLM

from ridgeline.serve.config import EngineConfig
from ridgeline.serve.weights.by_layer import read_by_layer
from ridgeline.serve.weights.linears import FrozenLinear
from ridgeline.serve.weights.shrink import shrink


def both(folder: Path, **changes: Any) -> tuple[Any, Any]:
    """As it is read here, and as transformers reads it before it is shrunk."""
    config = EngineConfig(model=str(folder), **changes)
    about = AutoConfig.from_pretrained(folder)
    mine = read_by_layer(config, about, torch.float32, torch.device("cpu"))
    theirs = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    )
    shrink(theirs, config)
    return mine, theirs


def same_logits(mine: Any, theirs: Any) -> bool:
    tokens = torch.arange(5, 25)[None]
    with torch.inference_mode():
        return torch.equal(
            mine.eval()(input_ids=tokens).logits, theirs.eval()(input_ids=tokens).logits
        )


@pytest.mark.sweep(every=4)
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize(
    "changes",
    [{}, {"weights": "int8"}, {"weights": "int4", "group_size": 16}],
    ids=lambda changes: changes.get("weights", "model"),
)
def test_it_is_the_model_that_transformers_reads(
    tmp_path: Path, changes: dict[str, Any], tied: bool
) -> None:
    mine, theirs = both(write_tiny_llama(tmp_path, tie_word_embeddings=tied), **changes)
    assert same_logits(mine, theirs)
    assert not any(tensor.is_meta for tensor in (*mine.parameters(), *mine.buffers()))
    assert any(isinstance(module, FrozenLinear) for module in mine.modules())
    assert mine.generation_config.eos_token_id == theirs.generation_config.eos_token_id


IN_FLOAT32 = {"gpt_oss", "nemotron_h", "deepseek_v3", "glm4_moe_lite"}
"""Families of which transformers keeps some tensors in float32."""


@pytest.mark.slow
@pytest.mark.parametrize("family", FITTING)
def test_every_family_is_read_alike(tmp_path: Path, family: str) -> None:
    tiny(family).save_pretrained(tmp_path)
    mine, theirs = both(tmp_path)
    assert (mine is None) == (family in IN_FLOAT32)
    assert mine is None or same_logits(mine, theirs)


def test_no_file_of_the_checkpoint_stays_mapped(tmp_path: Path) -> None:
    shutil.copytree(LIBRARY, tmp_path / "model")
    config = EngineConfig(model=str(tmp_path / "model"), weights="int8")
    about = AutoConfig.from_pretrained(config.model)
    model = read_by_layer(config, about, torch.float32, torch.device("cpu"))
    assert model is not None
    assert str(tmp_path) not in Path("/proc/self/maps").read_text()


def test_what_only_transformers_can_read_is_left_to_it(tmp_path: Path) -> None:
    folder = write_tiny_llama(tmp_path)
    device, about = torch.device("cpu"), AutoConfig.from_pretrained(folder)

    def read(model: str, **changes: Any) -> Any:
        return read_by_layer(EngineConfig(model=model, **changes), about, torch.float32, device)

    assert read("someone/something") is None
    assert read(str(folder), trust_remote_code=True) is None
    index = {"weight_map": {"model.norm.weight": "other.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert read(str(folder)) is None
