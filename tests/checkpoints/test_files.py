from __future__ import annotations

import json
import shutil

import pytest
import torch
from transformers import AutoModelForCausalLM

from ridgeline.checkpoints.files import CheckpointFiles
from ridgeline.checkpoints.skeleton import ModelSkeleton
from ridgeline.errors import InputError


@pytest.fixture
def model(tiny_model, tmp_path):
    return shutil.copytree(tiny_model("llama"), tmp_path / "model")


@pytest.fixture
def sharded(tiny_model, tmp_path):
    whole = AutoModelForCausalLM.from_pretrained(tiny_model("llama"))
    whole.save_pretrained(tmp_path / "sharded", max_shard_size="20KB")
    return tmp_path / "sharded"


def test_shards_are_read_through_their_index(sharded, tiny_model):
    one, several = CheckpointFiles(tiny_model("llama")), CheckpointFiles(sharded)
    assert sorted(one.names) == sorted(several.names)
    for name in one.names:
        assert torch.equal(one.read(name), several.read(name))
    ModelSkeleton(several).load_block(1)


def test_some_rows_are_read_without_the_others(model):
    checkpoint = CheckpointFiles(model)
    name = "model.embed_tokens.weight"
    rows = checkpoint.rows(name, torch.tensor([3, 90, 4]))
    assert checkpoint.read_bytes == 3 * 32 * 4
    assert torch.equal(rows, checkpoint.read(name)[[3, 90, 4]])


def test_a_missing_shard_is_named(sharded):
    missing = sorted(sharded.glob("*.safetensors"))[1]
    missing.unlink()
    with pytest.raises(InputError, match=f"{missing.name}: named in .* but missing"):
        CheckpointFiles(sharded)


@pytest.mark.parametrize("keep", [4, 60, -1])
def test_a_truncated_file_is_named(model, keep):
    path = model / "model.safetensors"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(InputError, match=r"model\.safetensors: .*; fetch it again") as caught:
        CheckpointFiles(model)
    assert "\n" not in str(caught.value)


def test_a_damaged_header_is_named(model):
    path = model / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[8:20] = b"\xff" * 12
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"model\.safetensors: damaged header"):
        CheckpointFiles(model)


def test_what_is_no_model_is_said_in_one_line(tmp_path, model):
    with pytest.raises(InputError, match=r"config\.json: no such file; not a model directory"):
        CheckpointFiles(tmp_path)
    (model / "model.safetensors").unlink()
    with pytest.raises(InputError, match="save the model as safetensors first"):
        CheckpointFiles(model)
    (model / "model.safetensors.index.json").write_text(json.dumps({"weights": 3}))
    with pytest.raises(InputError, match="no weight_map"):
        CheckpointFiles(model)
