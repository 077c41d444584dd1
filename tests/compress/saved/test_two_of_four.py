"""Packed 2:4 directories give the model back, and nobody takes them for another format."""

from __future__ import annotations

import filecmp
import json
from pathlib import Path

import pytest
import torch

from ridgeline.compress.evaluate.loaded import load
from ridgeline.compress.pruning.report import sparsity
from ridgeline.compress.run import CompressionJob, stage
from ridgeline.compress.saved.two_of_four import export, restore
from ridgeline.errors import InputError
from ridgeline.records.scheme_names import parse


def pruned(model: Path, folder: Path, *names: str) -> Path:
    """The model with these schemes applied."""
    job = CompressionJob(model=model, schemes=tuple(map(parse, names)), work=folder / "work")
    stage(job).save(folder / "sparse")
    return folder / "sparse"


@pytest.mark.sweep("w8a8")
@pytest.mark.parametrize(
    ("dtype", "names", "share"),
    [
        (torch.bfloat16, ["2:4-magnitude"], 9 / 16),
        # int8 wants tiles of 16 x 64: of this model only down_proj, 32 x 64, is one.
        (torch.float32, ["2:4-magnitude", "w8a16-channel"], 5 / 8),
        (torch.float32, ["2:4-magnitude", "w8a8"], 5 / 8),
    ],
    ids=["bf16", "w8a16", "w8a8"],
)
def test_it_comes_back_to_the_byte(tiny_model, tmp_path, dtype, names, share):
    sparse = pruned(tiny_model("llama", dtype), tmp_path, *names)
    export(sparse, tmp_path / "packed")
    packed = json.loads((tmp_path / "packed/config.json").read_text())["tensors"]
    layers = {name.rpartition(".")[0] for name in packed}
    matrices = [one for one in sparsity(sparse).layers if one.name in layers]
    assert len(matrices) == len(packed) > 0
    itemsize = 2 if dtype == torch.bfloat16 else 1
    weights = sum(one.shape[0] * one.shape[1] for one in matrices) * itemsize
    before, after = (
        (tmp_path / name / "model.safetensors").stat().st_size for name in ("sparse", "packed")
    )
    assert before - after == pytest.approx(weights * (1 - share), abs=2500)  # the header grows
    restore(tmp_path / "packed", tmp_path / "back")
    files = ["config.json", "generation_config.json", "model.safetensors"]
    same = filecmp.cmpfiles(sparse, tmp_path / "back", files, shallow=False)[0]
    assert same == files


def test_other_programs_and_our_own_refuse_it(tiny_model, tmp_path):
    sparse = pruned(tiny_model("llama", torch.bfloat16), tmp_path, "2:4-magnitude")
    export(sparse, tmp_path / "packed")
    with pytest.raises(InputError, match="ridgeline-2of4"):
        load("MODEL", tmp_path / "packed", "cpu")
    with pytest.raises(InputError, match="no packed 2:4 model"):
        restore(sparse, tmp_path / "back")


@pytest.mark.sweep("names0")
@pytest.mark.parametrize(
    "names", [["w8a16-channel"], ["2:4-magnitude"], ["2:4-magnitude", "w4a16-channel"]]
)
def test_what_has_no_packed_form_is_refused_and_leaves_nothing(tiny_model, tmp_path, names):
    sparse = pruned(tiny_model("llama"), tmp_path, *names)  # float32
    with pytest.raises(InputError, match="no matrix is 2:4 in 16 or 8 bits"):
        export(sparse, tmp_path / "packed")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["sparse"]
