from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

from ridgeline.checkpoints import files
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


@pytest.mark.parametrize("together", [1, 128 * 4, 128 * 40])
def test_rows_are_the_same_however_many_are_read_at_once(model, monkeypatch, together):
    monkeypatch.setattr("ridgeline.checkpoints.files.READ_TOGETHER_BYTES", together)
    checkpoint = CheckpointFiles(model)
    name = "model.embed_tokens.weight"
    wanted = [0, 1, 2, 7, 40, 41, 90, 3, 3, checkpoint.shape(name)[0] - 1]
    assert torch.equal(checkpoint.rows(name, torch.tensor(wanted)), checkpoint.read(name)[wanted])


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


def test_a_file_of_many_tensors_is_opened_once_and_anew_when_much_was_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = {f"experts.{number}": torch.full((4, 4), float(number)) for number in range(32)}
    save_file(given, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text("{}")
    opened: list[Path] = []
    plain = files.safe_open

    def counted(path: Path, **how: str) -> object:
        opened.append(path)
        return plain(path, **how)

    checkpoint = files.CheckpointFiles(tmp_path)
    monkeypatch.setattr(files, "safe_open", counted)
    for name, values in given.items():
        assert torch.equal(checkpoint.read(name), values)
    assert len(opened) == 1
    monkeypatch.setattr(files, "LARGEST_MAPPED_BYTES", 8 * 4 * 4 * 4)
    opened.clear()
    for name in given:
        checkpoint.read(name)
    assert len(opened) == 4
