"""A run that goes on from a checkpoint ends bit for bit where the uninterrupted one does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.train.checkpoint.recipes import small_run
from tests.train.checkpoint.resume_worker import Outcome
from tests.train.processes import run_ranks

from ridgeline.records.recipe import Recipe

pytestmark = pytest.mark.multiprocess
_RESUMED = "tests.train.checkpoint.resume_worker:resumed"
_CHAINED = "tests.train.checkpoint.resume_worker:chained"
_STOP_AT = 3
_ALIKE = {"micro_batch": 1, "global_batch": 4}
Three = tuple[Outcome, Outcome, Outcome]

ALONE: dict[str, dict[str, Any]] = {
    "accumulation, dropout and average": {"optimizer": {"ema": 0.9}},
    "fp16 with a loss scale": {
        "layout": {"precision": "fp16"},
        "precision": {"growth_interval": 2, "loss_scale": 2.0**40},
    },
    "bf16 weights rounded by chance": {
        "precision": {"weights": "bf16", "stochastic_rounding": True}
    },
    "optimizer on disk": {"layout": {"offload": "optimizer-on-disk"}},
    "adalora": {"adapter": {"kind": "adalora", "rank": 2}},
    "pruned step by step": {
        "pruning": {"share": 0.5, "begin_step": 1, "end_step": 4, "every_steps": 2},
        "optimizer": {"ema": 0.9},
    },
    "a lottery": {
        "lottery": {"share": 0.5, "rounds": 1, "rewind_step": 2},
        "run": {"steps": 4, "log_every": 1},
    },
}
TOGETHER: dict[str, dict[str, Any]] = {
    "zero 3": {"layout": {"dp": 2, "fsdp": 2, "zero": 3}, "optimizer": {"ema": 0.9}},
    "zero 3, on disk": {"layout": {"dp": 2, "fsdp": 2, "zero": 3, "offload": "optimizer-on-disk"}},
    "pipeline, tied": {"kind": "llama-tied", "layout": {"pp": 2}},
}
MORE_ALONE: dict[str, dict[str, Any]] = {
    "muon": {"optimizer": {"name": "muon"}},
    "eight bits": {"optimizer": {"name": "adamw8bit"}},
    "lora": {"adapter": {"rank": 2, "dropout": 0.1}},
    "rounded weights": {
        "kind": "llama-tied",
        "quantisation": {"scheme": "w4a8-rtn-g16"},
    },
    "read ahead, padded": {"data": {"workers": 1, "packing": "padded"}},
}
MORE: dict[str, dict[str, Any]] = {
    "zero 1, muon": {
        "layout": {"dp": 2, "fsdp": 2, "zero": 1},
        "optimizer": {"name": "muon"},
    },
    "diloco": {"layout": {"dp": 2}, "communication": {"sync_every": 2, "outer": "diloco"}},
    "tensor parallel": {"kind": "llama-tied", "layout": {"tp": 2}},
    "ddp": {"layout": {"dp": 2}},
    "int8": {"layout": {"dp": 2}, "communication": {"compression": "int8"}},
    "powersgd": {"layout": {"dp": 2}, "communication": {"compression": "powersgd"}},
    "topk": {"layout": {"dp": 2}, "communication": {"compression": "topk", "kept_share": 0.1}},
    "randomk": {
        "layout": {"dp": 2},
        "communication": {"compression": "randomk", "kept_share": 0.1},
    },
    "2:4, zero 3": {
        "layout": {"dp": 2, "fsdp": 2, "zero": 3},
        "pruning": {"pattern": [2, 4], "begin_step": 1, "end_step": 4, "every_steps": 1},
    },
    "a lottery, tensor parallel": {
        "kind": "llama-tied",
        "layout": {"tp": 2},
        "lottery": {"share": 0.5, "rounds": 1, "rewind_step": 2},
        "run": {"steps": 4, "log_every": 1},
        "optimizer": {"warmup_steps": 1},
    },
}
"""What each of these keeps besides weights is also resumed in `tests/train/compression`."""


def _recipes(folder: Path, cases: dict[str, dict[str, Any]]) -> dict[str, Recipe]:
    return {name: small_run(folder, **tables) for name, tables in cases.items()}


def _run(folder: Path, cases: dict[str, dict[str, Any]], ranks: int) -> list[dict[str, Three]]:
    argument = {
        "cases": _recipes(folder, cases),
        "folder": str(folder),
        "stop_at": _STOP_AT,
    }
    return run_ranks(ranks, _RESUMED, argument)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Three]]:
    return _run(tmp_path_factory.mktemp("alone"), ALONE, 1)


@pytest.fixture(scope="module")
def together(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Three]]:
    return _run(tmp_path_factory.mktemp("together"), TOGETHER, 2)


@pytest.mark.slow
@pytest.mark.parametrize("name", ALONE)
def test_one_process_goes_on_bit_for_bit(alone: list[dict[str, Three]], name: str) -> None:
    _check(alone, name)


@pytest.mark.slow
@pytest.mark.parametrize("name", TOGETHER)
def test_two_processes_go_on_bit_for_bit(together: list[dict[str, Three]], name: str) -> None:
    _check(together, name)


@pytest.mark.slow
@pytest.mark.parametrize("name", MORE_ALONE)
def test_one_process_with_more_state_goes_on_bit_for_bit(tmp_path: Path, name: str) -> None:
    _check(_run(tmp_path, {name: MORE_ALONE[name]}, 1), name)


@pytest.mark.slow
@pytest.mark.parametrize("name", MORE)
def test_two_processes_with_more_hooks_go_on_bit_for_bit(tmp_path: Path, name: str) -> None:
    _check(_run(tmp_path, {name: MORE[name]}, 2), name)


def _check(outcomes: list[dict[str, Three]], name: str) -> None:
    for of_rank in outcomes:
        straight, first, second = of_rank[name]
        assert (straight.began, first.began, second.began) == (0, 0, _STOP_AT)
        assert len(straight.losses) == 6
        assert len(set(straight.losses)) == 6
        assert first.losses + second.losses == straight.losses
        assert second.tokens == straight.tokens
        for parameter, weight in straight.weights.items():
            assert torch.equal(second.weights[parameter], weight), parameter
