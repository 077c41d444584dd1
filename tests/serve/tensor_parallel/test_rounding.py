"""Shares in 8 and 4 bits: the levels of the whole model, so that only sums have another order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.serve.engine.workloads import LIBRARY
from tests.serve.model.tiny_families import tiny
from tests.serve.tensor_parallel.test_experts import Line
from tests.serve.tensor_parallel.test_tokens import PROMPTS, running, tokens_of
from torch import Tensor, nn

from ridgeline.serve.config import EngineConfig
from ridgeline.serve.tensor_parallel.reading import load_share
from ridgeline.serve.weights import shrink
from ridgeline.serve.weights.linears import FrozenLinear

FORMATS: dict[str, dict[str, Any]] = {
    "int8": {"weights": "int8"},
    "w8a8": {"weights": "w8a8"},
    "int4": {"weights": "int4", "group_size": 4},
}


def weights_of(model: nn.Module) -> dict[str, Tensor]:
    """What the linear layers multiply by, by the whole model's names."""
    return {
        name.removesuffix(".inner"): module.dequantised()
        for name, module in model.named_modules()
        if isinstance(module, FrozenLinear)
    }


def joined(parts: list[Tensor], whole: Tensor) -> Tensor:
    """Shares along outputs or inputs in one; what every rank has whole as the first has it."""
    if parts[0].shape == whole.shape:
        return parts[0]
    dim = 0 if parts[0].shape[1] == whole.shape[1] else 1
    return torch.cat(parts, dim)[: len(whole)]


@pytest.mark.sweep("qwen2-int8", "mixtral-int8")
@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("family", ["qwen2", "mixtral", "qwen3_moe"])
def test_shares_of_two_ranks_have_the_levels_of_the_whole(
    family: str, form: str, tmp_path: Path
) -> None:
    model = tiny(family)
    model.save_pretrained(tmp_path)
    config = EngineConfig(model=str(tmp_path), device="cpu", **FORMATS[form])
    shares = []
    for rank in range(2):
        line: Any = Line(rank)
        by_row = form != "int4"
        share = load_share(model.config, tmp_path, torch.float32, line, scaled_by_row=by_row)
        shrink(share, config)
        shares.append(weights_of(share))
    shrink(model, config)
    whole = weights_of(model)
    assert whole.keys() == shares[0].keys()
    for name, weight in whole.items():
        if "gate_up_proj" not in name:  # a half of each of two matrices in one
            assert torch.equal(joined([one[name] for one in shares], weight), weight), name


@pytest.mark.multiprocess
@pytest.mark.slow
@pytest.mark.parametrize("form", ["int8", "int4"])
@pytest.mark.parametrize("how", [{}, {"expert_parallel": True}, {"pp": 2}], ids=str)
def test_two_ranks_of_a_rounded_mixture_give_the_tokens_of_one(
    tmp_path: Path, form: str, how: dict[str, Any]
) -> None:
    tiny("qwen3_moe").save_pretrained(tmp_path)
    with running(tmp_path, **FORMATS[form]) as whole:
        expected = tokens_of(whole, PROMPTS)
    with running(tmp_path, tp=2, **how, **FORMATS[form]) as engine:
        assert tokens_of(engine, PROMPTS) == expected


@pytest.mark.multiprocess
@pytest.mark.slow
@pytest.mark.parametrize("form", ["int8", "int4"])
def test_two_ranks_of_a_rounded_model_give_the_tokens_of_one(form: str) -> None:
    changes = {**FORMATS[form], "dtype": "fp32"}
    prompts = {"a": list(range(5, 45)), "b": list(range(300, 330))}
    with running(LIBRARY, **changes) as whole:
        expected = tokens_of(whole, prompts)
    with running(LIBRARY, tp=2, **changes) as engine:
        assert tokens_of(engine, prompts) == expected
