"""A mixture whose experts are dealt out whole over ranks: the tokens of the plain model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.serve.engine.workloads import LIBRARY, plain_greedy, tiny_engine
from tests.serve.model.tiny_families import tiny
from tests.serve.tensor_parallel.test_tokens import PROMPTS, running, tokens_of
from torch import Tensor, nn

from ridgeline.errors import InputError
from ridgeline.serve.tensor_parallel.plan import RankPlace
from ridgeline.serve.tensor_parallel.reading import load_share

MIXTURES = ["mixtral", "qwen2_moe", "qwen3_moe"]


class Line:
    """One of two ranks, which nobody answers."""

    def __init__(self, rank: int) -> None:
        self.rank, self.size, self.device = rank, 2, torch.device("cpu")
        self.place = RankPlace(rank, 2)

    def add_up(self, share: Tensor) -> Tensor:
        return share


def experts_of(model: nn.Module) -> Any:
    return next(one for name, one in model.named_modules() if name.endswith("0.mlp.experts"))


def test_two_ranks_have_half_of_the_experts_each_and_sum_up_to_all(tmp_path: Path) -> None:
    whole = tiny("mixtral")
    whole.save_pretrained(tmp_path)
    every = experts_of(whole)
    generator = torch.Generator().manual_seed(1)
    states = torch.randn(9, whole.config.hidden_size, generator=generator)
    chosen = torch.rand(9, every.num_experts, generator=generator).topk(2).indices
    chosen[0] = torch.tensor([2, 3])  # none of the first rank's
    weights = torch.rand(9, 2, generator=generator)
    sums = []
    for rank in range(2):
        line: Any = Line(rank)
        share = load_share(whole.config, tmp_path, torch.float32, line, whole_experts=True)
        mine = experts_of(share)
        half = every.num_experts // 2
        first = every.gate_up_proj[rank * half : (rank + 1) * half]
        assert torch.equal(mine.gate_up_proj, first)
        with torch.inference_mode():
            sums.append(mine(states, chosen, weights))
    with torch.inference_mode():
        expected = every(states, chosen, weights)
    torch.testing.assert_close(sums[0] + sums[1], expected)
    others = (chosen >= half).all(-1)
    assert others.any()
    assert not sums[0][others].any()  # no expert of the first rank was asked


@pytest.mark.multiprocess
@pytest.mark.slow
@pytest.mark.parametrize("family", MIXTURES)
def test_every_mixture_gives_the_tokens_of_the_plain_model(tmp_path: Path, family: str) -> None:
    model = tiny(family)
    model.save_pretrained(tmp_path)
    with running(tmp_path, tp=2, expert_parallel=True) as engine:
        found = tokens_of(engine, PROMPTS)
    for name, prompt in PROMPTS.items():
        assert found[name, 0] == plain_greedy(model, prompt, 16), (family, name)


@pytest.mark.multiprocess
@pytest.mark.slow
def test_experts_of_stages_are_dealt_out_too(tmp_path: Path) -> None:
    model = tiny("qwen3_moe")
    model.save_pretrained(tmp_path)
    with running(tmp_path, tp=2, pp=2, expert_parallel=True) as engine:
        found = tokens_of(engine, PROMPTS)
    for name, prompt in PROMPTS.items():
        assert found[name, 0] == plain_greedy(model, prompt, 16), name


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tp": 1}, "--expert-parallel: deals experts out over --tp N ranks"),
        ({"tp": 2}, "models of the family llama have no experts that could be dealt out"),
    ],
)
def test_what_has_no_experts_to_deal_out_is_refused(changes: dict[str, int], message: str) -> None:
    with pytest.raises(InputError, match=message):
        tiny_engine(LIBRARY, expert_parallel=True, **changes)
