"""Small runs on real text, with every kind of state that a checkpoint has to hold."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
from tests.train.tiny_models import CONFIGS

from ridgeline.records.recipe import Recipe

VOCAB = 260


def write_model(folder: Path, kind: str = "gpt2") -> Path:
    """The configuration of a model with dropout, and two text files beside it."""
    values = CONFIGS[kind] | {"vocab_size": VOCAB}
    if kind == "gpt2":
        values |= {"resid_pdrop": 0.1, "embd_pdrop": 0.1, "attn_pdrop": 0.1}
    place = folder / kind
    place.mkdir(parents=True, exist_ok=True)
    (place / "config.json").write_text(json.dumps(values))
    text = folder / "text"
    text.mkdir(exist_ok=True)
    for name in ("encoder", "decoder"):
        source = Path(json.__file__).with_name(f"{name}.py")
        (text / f"{name}.txt").write_text(source.read_text())
    return place


def small_run(folder: Path, kind: str = "gpt2", **tables: dict[str, Any]) -> Recipe:
    """Six steps of four sequences; tables override keys."""
    base: dict[str, dict[str, Any]] = {
        "model": {"config": str(write_model(folder, kind)), "attention": "eager"},
        "data": {
            "path": str(folder / "text"),
            "tokenizer": "bpe:260",
            "seq": 32,
            "workers": 0,
        },
        "layout": {
            "micro_batch": 1,
            "global_batch": 4,
            "precision": "fp32",
            "compiled": False,
        },
        "optimizer": {
            "learning_rate": 3e-3,
            "final_learning_rate": 1e-3,
            "warmup_steps": 2,
        },
        "run": {"steps": 6, "log_every": 1},
        "checkpoint": {"every_steps": 100},
    }
    for table, values in tables.items():
        base[table] = base.get(table, {}) | values
    if base["layout"].get("offload") == "optimizer-on-disk":
        base["memory"] = base.get("memory", {}) | {"offload_path": str(folder)}
    return msgspec.convert(base, type=Recipe)
