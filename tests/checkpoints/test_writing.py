"""Shards are the files that safetensors itself writes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from ridgeline.checkpoints.writing import Shards

TENSORS = {
    "b": torch.arange(7, dtype=torch.uint8),
    "a": torch.randn(3, 5),
    "scalar": torch.tensor(4.0),
    "empty": torch.empty(0, 3),
    "half": torch.randn(3).bfloat16(),
    "eighth": torch.randn(5).to(torch.float8_e4m3fn),
    "numbers": torch.tensor([3, 5]),
    "turned": torch.randn(4, 6).T,
}


@pytest.mark.parametrize("backwards", [False, True])
def test_a_file_does_not_depend_on_the_order_of_arrival(tmp_path: Path, backwards: bool) -> None:
    shards = Shards(tmp_path)
    for name in sorted(TENSORS, reverse=backwards):
        shards.add(name, TENSORS[name])
    assert shards.close() == sum(tensor.nbytes for tensor in TENSORS.values())
    plain = {name: tensor.contiguous() for name, tensor in TENSORS.items()}
    save_file(plain, tmp_path / "expected", metadata={"format": "pt"})
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["expected", "model.safetensors"]
    found = (tmp_path / "model.safetensors").read_bytes()
    assert found == (tmp_path / "expected").read_bytes()


def test_a_name_is_written_once(tmp_path: Path) -> None:
    shards = Shards(tmp_path)
    shards.add("a", torch.ones(2))
    with pytest.raises(ValueError, match="a was written before"):
        shards.add("a", torch.ones(2))
    shards.close()
