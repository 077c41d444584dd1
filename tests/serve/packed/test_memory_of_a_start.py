"""A start holds at most what it keeps, the runtime, and a few layers as they were stored."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tests.serve.engine.workloads import write_tiny_llama

from ridgeline.hardware.ceilings import cache_folder

MB = 10**6
PROGRAM = """
import re, sys
from pathlib import Path
from ridgeline.cli.main import run
code = run(sys.argv[1:])
print(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1], file=sys.stderr)
sys.exit(code)
"""
"""A command, and the most that its own process held, in kB, on stderr."""


def start(folder: Path, cache: Path) -> tuple[int, dict[str, int], str]:
    """The peak of a command that packs or maps a model, its ledger, and the weights' note."""
    words = ["generate", str(folder), "--prompt", "1 5 9", "--max-tokens", "4", "--json"]
    words += ["--weights", "int4", "--dtype", "bf16", "--threads", "1", "--kv-bytes", "4MB"]
    words += ["--max-tokens-per-step", "16", "--max-sequences", "1"]
    child = subprocess.run(
        [sys.executable, "-c", PROGRAM, *words],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "XDG_CACHE_HOME": str(cache)},
    )
    rows = json.loads(child.stdout)["memory"]
    peak = int(child.stderr.split()[-1]) * 1024
    notes = " ".join(row["note"] for row in rows if "int4" in row["what"])
    return peak, {row["what"]: row["bytes"] for row in rows}, notes


@pytest.mark.slow
def test_packing_leaves_no_checkpoint_in_memory(tmp_path: Path) -> None:
    wide = {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 6}
    sizes = {"num_attention_heads": 8, "vocab_size": 4096, "torch_dtype": torch.bfloat16, **wide}
    folder = write_tiny_llama(tmp_path / "wide", **sizes)
    small = write_tiny_llama(tmp_path / "small", hidden_size=256, intermediate_size=512)
    cache = tmp_path / "cache"
    (cache / "ridgeline").mkdir(parents=True)
    (cache / "ridgeline/kernels").symlink_to(cache_folder() / "kernels")  # compiled already
    runtime, _, _ = start(small, cache)
    packed, ledger, note = start(folder, cache)
    mapped, again, later = start(folder, cache)
    assert "cache" not in note
    assert later.endswith("mapped from the cache")
    weights = sum(size for what, size in ledger.items() if what.startswith("weights"))
    stored = (folder / "model.safetensors").stat().st_size
    assert stored > 300 * MB
    assert packed - runtime < weights + 120 * MB
    assert mapped - runtime < weights + 30 * MB
    listed = sum(again.values()) - again["activations"]
    assert abs(listed - mapped) < 0.1 * mapped
