"""State on disk changes nothing but where it lies: the weights are the same, bit for bit."""

from __future__ import annotations

from pathlib import Path
from threading import Event
from typing import Any

import msgspec
import pytest
import torch
from tests.train.optimizers.test_rules import recipe_of
from torch import nn

from ridgeline.errors import InputError
from ridgeline.records.layout import Layout
from ridgeline.records.recipe import Recipe, RecipePrecision
from ridgeline.records.recipe_memory import RecipeMemory
from ridgeline.train.check import check
from ridgeline.train.optimizers import on_disk
from ridgeline.train.optimizers.build import build_optimizer

_CPU = torch.device("cpu")


def _network(dtype: torch.dtype) -> nn.Module:
    """Matrices inside and outside of blocks, large and small ones, a vector."""
    blocks = nn.Sequential(nn.Linear(40, 60), nn.Linear(60, 40, bias=False))
    network = nn.ModuleDict({"table": nn.Embedding(100, 40), "blocks": blocks})
    draw = torch.Generator().manual_seed(0)  # its own: threads of other tests may draw, too
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=draw))
    return network.to(dtype)


def _trained(recipe: Recipe, folder: Path | None, steps: int = 4) -> dict[str, torch.Tensor]:
    wide = recipe.precision.weights == "fp32"
    network = _network(torch.float32 if wide else torch.bfloat16)
    optimizer = build_optimizer([network], recipe, None)  # type: ignore[arg-type]
    if folder is not None:
        optimizer.keep_on_disk(folder, _CPU)
    draw = torch.Generator().manual_seed(1)
    for _ in range(steps):
        for parameter in network.parameters():
            noise = torch.randn(parameter.shape, generator=draw)
            parameter.grad = noise.to(parameter.dtype)
        optimizer.step()
        if folder is not None:
            assert list(folder.iterdir()) == [], "a crash would leave the file behind"
    states = {
        f"{place} {key}": value
        for place, state in enumerate(optimizer.state.values())
        for key, value in state.items()
    }
    return dict(network.named_parameters()) | states


@pytest.mark.parametrize("name", ["adamw", "lion", "muon", "sgd"])
@pytest.mark.parametrize("rounded", [False, True])
def test_every_rule_makes_the_same_of_state_on_disk(
    name: str, rounded: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(on_disk, "PORTION_BYTES", 2**14)  # so that there are several
    recipe = recipe_of(name)
    if rounded:
        narrow = RecipePrecision(weights="bf16", stochastic_rounding=True)
        recipe = msgspec.structs.replace(recipe, precision=narrow)
    expected, found = _trained(recipe, None), _trained(recipe, tmp_path)
    assert expected.keys() == found.keys()
    for key, value in expected.items():
        assert torch.equal(found[key], value), key


def test_no_window_is_filled_before_a_slow_disk_has_taken_what_was_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(on_disk, "PORTION_BYTES", 2**14)
    expected = _trained(recipe_of("adamw"), None)
    puts = 0
    third = Event()
    put, write = on_disk.DiskState._put, on_disk.DiskFile.write

    def counted(*given: Any) -> None:
        nonlocal puts
        put(*given)
        puts += 1
        if puts == 3:
            third.set()

    def slow(*given: Any) -> None:
        third.wait(0.2)  # the first write, until the window would be filled again
        write(*given)

    monkeypatch.setattr(on_disk.DiskState, "_put", counted)
    monkeypatch.setattr(on_disk.DiskFile, "write", slow)
    found = _trained(recipe_of("adamw"), tmp_path, steps=4)
    assert puts >= 3
    for key, value in expected.items():
        assert torch.equal(found[key], value), key


def test_memory_holds_two_portions_however_many_there_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(on_disk, "PORTION_BYTES", 2**16)
    weights = [nn.Parameter(torch.zeros(8192)) for _ in range(16)]
    state = on_disk.DiskState(tmp_path, [(weights, 2)], _CPU)
    assert state.size_bytes == 16 * 2 * 8192 * 4
    assert len(state.portions(0)) == 16
    assert sum(window.numel() for window in state._windows) == 2 * 2 * 8192 * 4


def test_a_disk_without_room_is_one_line_before_the_first_step(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"memory\.offload_path .* are free; make room") as caught:
        on_disk.DiskFile(tmp_path, 2**55)
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def _refused(memory: dict[str, Any], offload: str, optimizer: str = "adamw") -> str:
    recipe = msgspec.structs.replace(
        recipe_of(optimizer),
        model=msgspec.structs.replace(recipe_of(optimizer).model, config="gpt2"),
        layout=Layout(offload=offload),  # type: ignore[arg-type]
        memory=RecipeMemory(**memory),
    )
    with pytest.raises(InputError) as caught:
        check(recipe)
    return str(caught.value)


def test_what_cannot_lie_on_disk_is_refused_with_the_cure(tmp_path: Path) -> None:
    there = {"offload_path": str(tmp_path)}
    assert "wants memory.offload_path" in _refused({}, "optimizer-on-disk")
    assert "writes what DeepSpeed runs" in _refused(there, "all-on-disk")
    assert "set that, or leave the path out" in _refused(there, "none")
    assert "optimizer.name to adamw" in _refused(there, "optimizer-on-disk", "adafactor")
    with pytest.raises(InputError, match="no such folder; make it"):
        on_disk.DiskFile(tmp_path / "absent", 2**12)
