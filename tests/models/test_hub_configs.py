"""Files as publishers of well-known models have them count what their cards print.

`hub_configs.json`: the keys of each model's config.json that say its shape, billions of parameters
as its card prints them (of a model that also sees or hears, those of its language model), and how
many are active.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ridgeline.models.config import read_config, spec_from_config
from ridgeline.models.counts import active_parameter_count, parameter_count
from ridgeline.plan.serving.plan import ServingTask, plan_serving

ALL: list[dict[str, Any]] = json.loads(Path(__file__).with_name("hub_configs.json").read_text())


@pytest.mark.parametrize("row", ALL, ids=[row["name"] for row in ALL])
def test_a_published_file_counts_what_its_card_prints(row: dict[str, Any]) -> None:
    spec = spec_from_config(row["config"], place="here", name=row["name"])
    assert parameter_count(spec) / 1e9 == pytest.approx(row["billions"], rel=0.01)
    if row["active"]:
        # Cards count or leave out embeddings, and print few digits.
        active = active_parameter_count(spec) / 1e9
        assert row["active"] - 1 < active < row["active"] + 2


@pytest.mark.parametrize("name", ["Llama-4-Scout", "Gemma-4-26B-A4B", "RecurrentGemma-9B"])
def test_a_published_file_is_planned(name: str, tmp_path: Path) -> None:
    row = next(row for row in ALL if row["name"] == name)
    (tmp_path / "config.json").write_text(json.dumps(row["config"]))
    model = read_config(tmp_path)
    task = ServingTask(model=model, prompt=1024, completion=256, users=16.0, gpus=("H200",))
    assert plan_serving(task).best.estimate.deployment.gpu == "H200-SXM-141GB"


def test_a_language_model_inside_a_thinker_is_found() -> None:
    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 97}
    text = {**sizes, "model_type": "qwen2", "intermediate_size": 96, "num_key_value_heads": 2}
    inner = {**text, "model_type": "qwen2_5_omni_text"}
    outer = {"model_type": "qwen2_5_omni", "thinker_config": {"text_config": inner}}
    found = spec_from_config(outer, place="here", name="omni")
    assert parameter_count(found) == parameter_count(spec_from_config(text, place="x", name="x"))
