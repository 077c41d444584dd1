"""Spread experts and cut sequences against one process: the same losses, step by step."""

from __future__ import annotations

from typing import Any

import pytest
from tests.train.parallel.pipeline_worker import reference
from tests.train.processes import run_ranks

_WORKER = "tests.train.parallel.experts_worker:run_cases"


def _case(layout: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"layout": layout, "steps": 6, "micro_batches": 4} | more


_SMALL = {"num_hidden_layers": 2}
_MIXTRAL = {"kind": "mixtral", "changes": _SMALL}
_QWEN = {"kind": "qwen3_moe", "changes": _SMALL}
EXPERTS = {
    "ep over all ranks": _case({"dp": 4, "ep": 4}, **_MIXTRAL),
    "two copies of each expert": _case({"dp": 4, "ep": 2}, **_QWEN),
    "zero 3": _case({"dp": 4, "ep": 2, "zero": 3, "fsdp": 4}, **_QWEN),
    "zero 1, recomputed": _case(
        {"dp": 4, "ep": 2, "zero": 1, "fsdp": 4}, recompute=True, micro_batches=8, **_MIXTRAL
    ),
    "over ranks that share a sequence": _case({"dp": 2, "cp": 2, "ep": 4}, **_MIXTRAL),
    "with tensor parallelism": _case({"dp": 2, "tp": 2, "ep": 2}, **_QWEN),
}
SEQUENCES = {
    "cp 4": _case({"cp": 4}, changes=_SMALL),
    "cp 2, dp 2, documents": _case({"cp": 2, "dp": 2}, documents=True, changes=_SMALL),
    "cp 2, zero 3, recomputed": _case(
        {"cp": 2, "dp": 2, "zero": 3, "fsdp": 4}, recompute=True, documents=True, changes=_SMALL
    ),
    "cp 4, autocast": _case({"cp": 4}, autocast=True, tolerance=2e-2, changes=_SMALL),
    "cp 2, tp 2": _case({"cp": 2, "tp": 2}, changes=_SMALL),
    "cp 4, gpt2": _case({"cp": 4}, kind="gpt2", changes=_SMALL, documents=True),
}


@pytest.mark.slow
@pytest.mark.multiprocess
def test_sequences_cut_over_ranks_train_as_one_process_does():
    _compare(SEQUENCES)


@pytest.mark.slow
@pytest.mark.multiprocess
def test_spread_experts_train_as_one_process_does_and_each_rank_keeps_its_share():
    results = _compare(EXPERTS)
    whole = {"mixtral": 2 * 4 * 3 * 48 * 32, "qwen3_moe": 2 * 8 * 3 * 16 * 32}
    for place, case in enumerate(EXPERTS.values()):
        ways = 4 if case["layout"].get("zero") else case["layout"]["ep"]
        for result in results:
            assert result[place]["kept"] == whole[case["kind"]] // ways


def _compare(cases: dict[str, dict[str, Any]]) -> list[list[dict[str, Any]]]:
    results = run_ranks(4, _WORKER, list(cases.values()))
    for place, (name, case) in enumerate(cases.items()):
        expected = reference(case)
        assert expected[-2] < 0.9 * expected[0], "the reference must learn, or nothing is shown"
        for rank, result in enumerate(results):
            found = result[place]["losses"]
            assert found == pytest.approx(expected, rel=case.get("tolerance", 2e-5)), (name, rank)
    return results
