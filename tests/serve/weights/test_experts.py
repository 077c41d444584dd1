"""Experts in 8 and 4 bits: the tokens of the same weights as numbers, and their bytes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.serve.engine.workloads import answers, finished, greedy, plain_greedy, tiny_engine
from tests.serve.model.tiny_families import tiny
from torch import nn

from ridgeline.compress.run import CompressionJob, stage
from ridgeline.kernels import linear_int4, linear_int8
from ridgeline.records.scheme_names import parse
from ridgeline.serve.config import EngineConfig
from ridgeline.serve.model.load import slower_paths
from ridgeline.serve.packed import entries
from ridgeline.serve.weights import by_layer, shrink

PROMPTS = [[5, 6, 7, 8, 9], list(range(20, 50))]
COUNT = 8
FAMILIES = (
    "qwen3_moe",
    "mixtral",
    "deepseek_v3",
    "hy_v3",
    "glm4_moe_lite",
    "gpt_oss",
    "qwen2_moe",
    "jamba",
    "lfm2_moe",
    "afmoe",
    "nemotron_h",
    "granitemoehybrid",
    "jetmoe",
    "longcat_flash",
)
FORMATS: dict[str, dict[str, Any]] = {
    "model": {},
    "int8": {"weights": "int8"},
    "int4": {"weights": "int4", "group_size": 4},
}


def rounded(weight: torch.Tensor, form: str) -> torch.Tensor:
    """A matrix [out, in] as numbers, as it is in that format."""
    if form == "int8":
        return linear_int8.dequantise(*linear_int8.quantise(weight))
    if form == "int4":
        return linear_int8.dequantise(*linear_int4.quantise(weight, 4))
    return weight


def round_numbers(model: nn.Module, form: str) -> None:
    """Round all matrices of linear layers and experts in place; tied heads stay apart."""
    with torch.no_grad():
        for module in model.modules():
            if type(module) is nn.Linear:
                module.weight = nn.Parameter(rounded(module.weight, form))
            elif "Experts" in type(module).__name__:
                for weight in module.parameters():
                    for one in weight if weight.ndim == 3 else ():
                        matrix = one.T if getattr(module, "is_transposed", False) else one
                        matrix.copy_(rounded(matrix, form))


def served(folder: Path, **changes: Any) -> tuple[list[list[int]], dict[str, int]]:
    """The tokens of `PROMPTS`, and the ledger's bytes of weights by kind."""
    engine = tiny_engine(folder, **changes)
    for place, prompt in enumerate(PROMPTS):
        engine.handle(greedy(str(place), prompt, COUNT))
    found = answers(finished(engine))
    rows = {
        row.what.removeprefix("weights, "): row.bytes
        for row in engine.ready.ledger.rows
        if row.what.startswith("weights")
    }
    return [found[str(place), 0] for place in range(len(PROMPTS))], rows


@pytest.mark.sweep("qwen3_moe-int4", "gpt_oss-int8")
@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("family", FAMILIES)
def test_experts_in_few_bits_give_the_tokens_of_the_same_numbers(
    family: str, form: str, tmp_path: Path
) -> None:
    model = tiny(family)
    model.save_pretrained(tmp_path)
    found, rows = served(tmp_path, **FORMATS[form])
    assert not any("numbers" in what for what in rows)
    round_numbers(model, form)
    assert found == [plain_greedy(model, prompt, COUNT) for prompt in PROMPTS]


def test_the_ledger_counts_experts_by_what_they_take(tmp_path: Path) -> None:
    model = tiny("mixtral")
    model.save_pretrained(tmp_path)
    experts = sum(
        weight.numel() for name, weight in model.named_parameters() if ".experts." in name
    )
    _, wide = served(tmp_path)
    _, narrow = served(tmp_path, weights="int8")
    assert wide["float32 packed"] > 4 * experts
    assert experts < narrow["int8"] < wide["float32 packed"] / 3
    assert max(wide["not packed"], narrow["not packed"]) < experts


def test_the_next_start_maps_packed_experts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(entries, "cache_folder", lambda: tmp_path / "cache")
    monkeypatch.setattr(entries, "LEAST_BYTES", 0)
    tiny("qwen3_moe").save_pretrained(tmp_path / "model")
    first = served(tmp_path / "model", weights="int8")
    assert list((tmp_path / "cache/packed").iterdir())
    monkeypatch.setattr(by_layer, "stored_pieces", None)
    assert served(tmp_path / "model", weights="int8") == first


@pytest.mark.sweep("w4a16-g8")
@pytest.mark.parametrize("scheme", ["w4a16-g8", "w8a16-channel", "w8a8"])
def test_compressed_experts_stay_compressed(scheme: str, tmp_path: Path) -> None:
    given = tmp_path / "given"
    tiny("qwen3_moe").save_pretrained(given)
    tokens = torch.randint(97, (2, 32), generator=torch.Generator().manual_seed(4))
    job = CompressionJob(
        model=given, schemes=(parse(scheme),), work=tmp_path / "work", tokens=tokens
    )
    made = stage(job)
    made.save(tmp_path / "made")
    _, rows = served(tmp_path / "made")
    [kind] = [what for what in rows if re.match("int[48]", what)]
    experts = sum(
        weight.numel()
        for name, weight in tiny("qwen3_moe").named_parameters()
        if ".experts." in name
    )
    assert rows[kind] > experts * (0.5 if "int4" in kind else 1)
    assert sum(rows.values()) - rows[kind] < 4 * experts


def test_a_family_that_multiplies_all_experts_in_one_call_is_named() -> None:
    model = tiny("llama4_text")
    config = EngineConfig(model="", weights="int8", device="cpu")
    rows = shrink(model, config)
    assert any("experts as numbers" in row.what for row in rows)
    assert slower_paths(config, config, model, None) == (
        "experts as numbers: the code of the family llama4_text does not multiply them one by one",
    )
