"""Models kept packed for the next start: found again, the same tokens, never another's."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.serve.engine.workloads import answers, finished, greedy, tiny_engine, write_tiny_llama
from tests.serve.model.tiny_families import FITTING, tiny

from ridgeline.cli.main import run
from ridgeline.kernels import linear, linear_int4, linear_int8
from ridgeline.serve.model import trial
from ridgeline.serve.packed import entries
from ridgeline.serve.weights import by_layer, choice

FORMATS: list[dict[str, Any]] = [{}, {"weights": "int8"}, {"weights": "int4", "group_size": 16}]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, in which models of any size are kept."""
    monkeypatch.setattr(entries, "cache_folder", lambda: tmp_path / "cache")
    monkeypatch.setattr(entries, "LEAST_BYTES", 0)
    return tmp_path / "cache/packed"


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    return write_tiny_llama(tmp_path / "llama")


def tokens(folder: Path, **changes: Any) -> Any:
    engine = tiny_engine(folder, **changes)
    engine.handle(greedy("a", [5, 6, 7, 8, 9], 12))
    return answers(finished(engine))


def only_entry(cache: Path) -> Path:
    [path] = cache.iterdir()
    return path


def forbid(monkeypatch: pytest.MonkeyPatch, *places: tuple[Any, str]) -> None:
    """What a start that finds everything does not do."""
    for module, name in places:
        monkeypatch.setattr(module, name, lambda *_, name=name, **__: pytest.fail(name))


def test_a_start_on_a_busy_machine_is_found_by_the_next_whatever_that_would_measure(
    llama: Path, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choice, "cache_folder", lambda: tmp_path / "choices")
    monkeypatch.setattr(choice, "_share_of_a_core", lambda *_began: 0.3)

    def starts_where(slower: str) -> Any:
        monkeypatch.setattr(
            choice,
            "_seconds",
            lambda layer, _x: 2.0 if type(layer).__name__.startswith(slower) else 1.0,
        )
        choice._kernel_for.cache_clear()
        return tokens(llama, weights="int8")

    first = starts_where("Torch")
    entry = only_entry(cache)
    assert starts_where("Int8") == first
    assert only_entry(cache) == entry
    choice._kernel_for.cache_clear()


@pytest.mark.sweep("model-True", "int4-False")
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("changes", FORMATS, ids=lambda one: one.get("weights", "model"))
def test_the_next_start_maps_what_the_first_one_packed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], tied: bool
) -> None:
    folder = write_tiny_llama(tmp_path / "llama", tie_word_embeddings=tied)
    first = tokens(folder, **changes)
    forbid(
        monkeypatch,
        *((one, "pack") for one in (linear, linear_int4, linear_int8)),
        *((one, "quantise") for one in (linear_int4, linear_int8)),
        *((trial, name) for name in ("check", "kv_shapes", "refusal")),
        (by_layer, "shrink"),
    )
    engine = tiny_engine(folder, **changes)
    notes = [row.note for row in engine.ready.ledger.rows if row.what.startswith("weights")]
    assert all(note.endswith("mapped from the cache") for note in notes)
    assert engine.model.direct is not None
    assert tokens(folder, **changes) == first


@pytest.mark.sweep("gemma", "opt")
@pytest.mark.parametrize("family", FITTING)
def test_what_is_kept_of_every_family_fits_the_next_start(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], family: str
) -> None:
    tiny(family).save_pretrained(tmp_path / "model")
    first = tokens(tmp_path / "model")
    capfd.readouterr()
    assert tokens(tmp_path / "model") == first
    assert "made anew" not in capfd.readouterr().err


def test_the_ledger_of_a_mapped_model_is_that_of_a_packed_one(llama: Path) -> None:
    first, second = (
        {
            row.what: row.bytes
            for row in tiny_engine(llama, weights="int4", group_size=16).ready.ledger.rows
        }
        for _ in range(2)
    )
    twice = first.pop("weights, not packed") - second.pop("weights, not packed")
    assert twice == 16, "transformers keeps the frequencies of four pairs twice"
    assert {**first, "program": 0} == {**second, "program": 0}


def flipped(content: bytes) -> bytes:
    middle = len(content) - 4096 + 5
    return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]


@pytest.mark.sweep("a bit", "empty")
@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(flipped, id="a bit"),
        pytest.param(lambda content: content[:-4096], id="cut off"),
        pytest.param(lambda content: content[:100] + b"x" + content[101:], id="header"),
        pytest.param(lambda _: b"", id="empty"),
        pytest.param(lambda _: b"{}" * 5000, id="foreign"),
    ],
)
def test_a_damaged_entry_is_made_anew_with_one_line(
    llama: Path,
    tmp_path: Path,
    cache: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    damage: Any,
) -> None:
    monkeypatch.setattr(choice, "cache_folder", lambda: tmp_path / "choices")
    monkeypatch.setattr(choice, "_share_of_a_core", lambda *_began: 0.3)  # choices that do not last
    choice._kernel_for.cache_clear()
    first = tokens(llama, weights="int8")
    path = only_entry(cache)
    whole = path.read_bytes()
    path.write_bytes(damage(whole))
    capsys.readouterr()
    assert tokens(llama, weights="int8") == first
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith(f"ridgeline: packed weights are made anew: {path}: ")
    assert path.read_bytes() == whole


def test_other_weights_in_the_same_place_are_another_model(llama: Path) -> None:
    first = tokens(llama, weights="int8")
    file = llama / "model.safetensors"
    known = file.stat()
    changed = {name: tensor.flip(0) for name, tensor in load_file(file).items()}
    save_file(changed, file, metadata={"format": "pt"})
    os.utime(file, ns=(known.st_atime_ns, known.st_mtime_ns))
    assert file.stat().st_size == known.st_size
    assert tokens(llama, weights="int8") != first


def test_it_can_be_left_out(llama: Path, cache: Path) -> None:
    tokens(llama, packed_cache=False)
    assert not cache.exists()


def test_a_folder_that_cannot_be_written_costs_one_line(
    llama: Path, cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cache.parent.mkdir()
    cache.write_text("a file, where the folder should be")
    assert tokens(llama)
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("ridgeline: packed weights are not kept: ")


def test_what_was_used_longest_ago_goes_beyond_the_bound(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = (write_tiny_llama(tmp_path / name) for name in ("one", "two"))
    tokens(one, weights="int8")
    path = only_entry(cache)
    os.utime(path, (0, 0))
    monkeypatch.setattr(entries, "MOST_BYTES", path.stat().st_size * 3 // 2)
    os.utime(two / "model.safetensors", (1, 1))
    tokens(two, weights="int8")
    assert only_entry(cache).name.startswith("two-int8-")


def test_the_commands_show_and_empty_the_folder(
    llama: Path, cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tokens(llama, weights="int8")
    size = only_entry(cache).stat().st_size
    capsys.readouterr()
    assert run(["packed", "list"]) == 0
    assert "llama-int8-" in capsys.readouterr().out
    assert run(["packed", "list", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["folder"], found["bytes"]) == (str(cache), size)
    assert [entry["bytes"] for entry in found["entries"]] == [size]
    assert run(["packed", "empty", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["freed_bytes"] == size
    assert not list(cache.iterdir())
    assert run(["packed", "empty"]) == 0
    assert str(cache) in capsys.readouterr().out


def test_a_mapped_tensor_can_be_written_to_without_changing_the_file(
    llama: Path, cache: Path
) -> None:
    tokens(llama)
    whole = only_entry(cache).read_bytes()
    engine = tiny_engine(llama)
    with torch.no_grad():
        for parameter in engine.model.model.parameters():
            parameter.zero_()
    assert only_entry(cache).read_bytes() == whole


def test_groups_that_only_ridgeline_multiplies_are_kept_without_a_measurement(
    tmp_path: Path, llama: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choice, "cache_folder", lambda: tmp_path / "measured")
    monkeypatch.setattr(choice, "_seconds", lambda layer, x: layer(x).norm().item() or 1.0)
    choice._kernel_for.cache_clear()
    first = tokens(llama, weights="int4", group_size=8)
    assert only_entry(cache).exists()
    assert tokens(llama, weights="int4", group_size=8) == first
    choice._kernel_for.cache_clear()
