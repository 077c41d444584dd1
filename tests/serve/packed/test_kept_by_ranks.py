"""Shares of ranks kept packed: mapped by the next start, made anew where one of them is damaged."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from tests.serve.engine.workloads import answers, finished, greedy, tiny_engine, write_tiny_llama
from tests.serve.model.tiny_families import tiny
from tests.serve.packed.small_ranks import CACHE, start_rank_that_keeps
from tests.serve.tensor_parallel.test_tokens import CUT, PROMPTS

from ridgeline.serve.engine import ranks
from ridgeline.serve.model import trial
from ridgeline.serve.packed import entries
from ridgeline.serve.pipeline_parallel import stages
from ridgeline.serve.tensor_parallel import reading

pytestmark = pytest.mark.multiprocess


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, in which shares of any size are kept."""
    monkeypatch.setenv(CACHE, str(tmp_path / "cache"))
    monkeypatch.setattr(entries, "cache_folder", lambda: tmp_path / "cache")
    monkeypatch.setattr(entries, "LEAST_BYTES", 0)
    monkeypatch.setattr(ranks, "start_rank", start_rank_that_keeps)
    return tmp_path / "cache/packed"


def started(folder: Path, **changes: Any) -> tuple[Any, list[str]]:
    """The tokens of an engine, and the notes of its weights."""
    engine = tiny_engine(folder, **changes)
    try:
        for name, prompt in PROMPTS.items():
            engine.handle(greedy(name, prompt, 8))
        notes = [row.note for row in engine.ready.ledger.rows if row.what.startswith("weights")]
        return answers(finished(engine)), notes
    finally:
        engine.close()


def forbid_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the first rank fail where it reads the checkpoint or proves anything."""
    for module, name in (
        *((trial, one) for one in ("check", "kv_shapes")),
        *((module, "stored_pieces") for module in (stages, reading)),
    ):
        monkeypatch.setattr(module, name, lambda *_, name=name, **__: pytest.fail(name))


@pytest.mark.sweep("tp")
@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"tp": 2, "weights": "int8"}, id="tp"),
        pytest.param({"pp": 2, "weights": "int4", "group_size": 32}, id="pp"),
        pytest.param({"tp": 2, "pp": 2}, id="both"),
        pytest.param({"tp": 2, "weights": "w8a8"}, id="rounded"),
    ],
)
def test_every_rank_maps_what_it_packed_at_the_first_start(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any]
) -> None:
    folder = write_tiny_llama(tmp_path / "llama")
    first, _ = started(folder, **changes)
    kept = sorted(cache.glob("*.packed"))
    assert len(kept) == changes.get("tp", 1) * changes.get("pp", 1)
    known = [path.stat().st_ino for path in kept]
    forbid_reading(monkeypatch)
    again, notes = started(folder, **changes)
    assert again == first
    assert notes
    assert all(note.endswith("mapped from the cache") for note in notes)
    assert [path.stat().st_ino for path in sorted(cache.glob("*.packed"))] == known


def test_a_damaged_share_is_made_anew_while_the_others_are_mapped(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_tiny_llama(tmp_path / "llama")
    first, _ = started(folder, tp=2, weights="int8")
    [one, other] = sorted(cache.glob("*.packed"))
    size, known = one.stat().st_size, other.stat().st_ino
    os.truncate(one, size - 4096)
    again, _ = started(folder, tp=2, weights="int8")
    assert again == first
    assert sorted(cache.glob("*.packed")) == [one, other]
    assert (one.stat().st_size, other.stat().st_ino) == (size, known)
    forbid_reading(monkeypatch)
    assert started(folder, tp=2, weights="int8")[0] == first


@pytest.mark.slow
@pytest.mark.parametrize("family", CUT)
def test_a_share_of_every_family_fits_the_next_start(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, family: str
) -> None:
    tiny(family).save_pretrained(tmp_path / "model")
    first, _ = started(tmp_path / "model", tp=2)
    assert len(list(cache.glob("*.packed"))) == 2
    forbid_reading(monkeypatch)
    again, _ = started(tmp_path / "model", tp=2)
    assert again == first
