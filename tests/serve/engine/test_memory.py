"""The memory ledger says what was allocated; what does not fit says which flag to change."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tests.serve.engine.workloads import tiny_engine, write_tiny_llama

from ridgeline.errors import InputError
from ridgeline.serve.engine import memory
from ridgeline.serve.engine.memory import peak_bytes


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("llama"))


@pytest.mark.parametrize("weights", ["model", "int8"])
@pytest.mark.parametrize("kv_dtype", ["model", "int8"])
def test_the_ledger_equals_the_storages(folder: Path, weights: str, kv_dtype: str) -> None:
    engine = tiny_engine(folder, weights=weights, kv_dtype=kv_dtype)
    ledger = engine.ready.ledger
    rows = {row.what: row.bytes for row in ledger.rows}
    storages = {}
    for tensor in [*engine.model.model.parameters(), *engine.model.model.buffers()]:
        storage = tensor.untyped_storage()
        storages[storage.data_ptr()] = storage.nbytes()
    listed = sum(size for what, size in rows.items() if what.startswith("weights"))
    assert listed == sum(storages.values())
    pool = sum(tensor.untyped_storage().nbytes() for tensor in engine.pool.tensors)
    assert rows["kv blocks"] == pool == ledger.num_blocks * 4 * ledger.bytes_per_token
    assert ledger.total_bytes == sum(rows.values())
    assert ledger.tokens == ledger.num_blocks * ledger.block_size


def test_the_cache_is_no_larger_than_all_sequences_together(folder: Path) -> None:
    engine = tiny_engine(folder, max_sequences=2, max_length=32)
    assert engine.ready.ledger.num_blocks == 2 * 32 / 4
    assert engine.ready.ledger.largest_concurrency == 2.0


def test_a_cache_too_small_for_max_length_says_how_large_it_must_be(folder: Path) -> None:
    with pytest.raises(InputError, match="--kv-bytes") as refusal:
        tiny_engine(folder, kv_bytes=4096, max_length=64)
    needed = int(re.search(r"--kv-bytes (\d+)", str(refusal.value))[1])  # type: ignore[index]
    assert tiny_engine(folder, kv_bytes=needed, max_length=64).ready.max_length == 64


def test_weights_that_leave_no_room_name_the_flags(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "device_bytes", lambda _: 100_000)
    named = rf"^{folder.name}: weights.* 98.3 kB.* leave no room.*--weights int8"
    with pytest.raises(InputError, match=named) as refused:
        tiny_engine(folder)
    assert "--memory-share" not in str(refused.value)
    with pytest.raises(InputError, match="a larger --memory-share"):
        tiny_engine(folder, memory_share=0.1)


def test_a_length_beyond_the_models_positions_is_refused(folder: Path) -> None:
    with pytest.raises(InputError, match="positions end at 256"):
        tiny_engine(folder, max_length=1000)


def test_the_peak_counts_what_is_held_at_once() -> None:
    given = torch.zeros(1000)

    def work() -> None:
        first = given + 1
        second = first * 2
        del first
        third = second.view(10, 100)  # the same storage
        del second, third
        given.sum()

    assert peak_bytes(work, torch.device("cpu")) == 2 * 4000


@pytest.mark.slow
def test_what_the_ledger_lists_is_what_the_process_holds(tmp_path: Path) -> None:
    """In a process of its own, with every token of the cache written."""
    model = write_tiny_llama(tmp_path, hidden_size=256, intermediate_size=512)
    code = f"""
from ridgeline.serve.config import EngineConfig
from ridgeline.serve.engine.engine import ServingEngine
from ridgeline.measure.calls.memory import resident_bytes

engine = ServingEngine(EngineConfig(model={str(model)!r}, kv_bytes=64 * 2**20, dtype="fp32"))
for tensor in engine.pool.tensors:
    tensor.zero_()
rows = {{row.what: row.bytes for row in engine.ready.ledger.rows}}
listed = engine.ready.ledger.total_bytes - rows["activations"]
print(resident_bytes() / listed)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert float(done.stdout) == pytest.approx(1.0, abs=0.05)
