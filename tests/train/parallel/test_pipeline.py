"""Pipelines of every schedule against one process: the same losses, step by step."""

from __future__ import annotations

from typing import Any

import pytest
from tests.train.parallel.pipeline_worker import reference
from tests.train.processes import run_ranks

_WORKER = "tests.train.parallel.pipeline_worker:run_cases"


def _case(layout: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"layout": layout, "steps": 6, "micro_batches": 4} | more


_TIED = {"changes": {"tie_word_embeddings": True}}
TWO_RANKS = {
    "gpipe": _case({"pp": 2, "schedule": "gpipe"}),
    "1f1b": _case({"pp": 2, "schedule": "1f1b"}),
    "1f1b, tied": _case({"pp": 2, "schedule": "1f1b"}, **_TIED),
    "1f1b, 6 micro-batches, gpt2": _case(
        {"pp": 2}, micro_batches=6, kind="gpt2", changes={"tie_word_embeddings": True}
    ),
    "interleaved": _case({"pp": 2, "vpp": 2, "schedule": "interleaved"}, **_TIED),
    "looped gpipe": _case({"pp": 2, "vpp": 2, "schedule": "gpipe"}),
    "zero-bubble": _case({"pp": 2, "schedule": "zero-bubble"}),
    "zero-bubble as a V, tied": _case({"pp": 2, "vpp": 2, "schedule": "zero-bubble"}, **_TIED),
    "zero-bubble, 3 chunks": _case({"pp": 2, "vpp": 3, "schedule": "zero-bubble"}),
    "1f1b, recomputed": _case({"pp": 2}, recompute=True),
    "1f1b, autocast": _case({"pp": 2}, autocast=True, tolerance=2e-2, **_TIED),
    "zero-bubble, recomputed": _case({"pp": 2, "schedule": "zero-bubble"}, recompute=True),
}
FOUR_RANKS = {
    "1f1b on 4": _case({"pp": 4}, **_TIED),
    "zero-bubble as a V on 4": _case({"pp": 4, "vpp": 2, "schedule": "zero-bubble"}),
    "dp x pp": _case({"dp": 2, "pp": 2}, **_TIED),
    "zero 1 x pp": _case({"dp": 2, "fsdp": 2, "zero": 1, "pp": 2}, **_TIED),
    "zero 2 x zero-bubble": _case(
        {"dp": 2, "fsdp": 2, "zero": 2, "pp": 2, "schedule": "zero-bubble"}
    ),
    "zero 3 x interleaved": _case(
        {"dp": 2, "fsdp": 2, "zero": 3, "pp": 2, "vpp": 2, "schedule": "interleaved"},
        micro_batches=8,
    ),
    "tp x pp": _case({"tp": 2, "pp": 2}, **_TIED),
    "sequence parallel x pp": _case({"tp": 2, "sp": True, "pp": 2}),
    "cp x pp": _case({"cp": 2, "pp": 2}, **_TIED),
    "ep x pp": _case({"dp": 2, "ep": 2, "pp": 2}, kind="mixtral"),
    "ep x zero-bubble": _case(
        {"dp": 2, "ep": 2, "pp": 2, "schedule": "zero-bubble"}, kind="mixtral"
    ),
    "bf16": _case(
        {"dp": 2, "fsdp": 2, "zero": 2, "pp": 2, "precision": "bf16"}, tolerance=2e-2, **_TIED
    ),
}


@pytest.mark.slow
@pytest.mark.multiprocess
def test_pipelines_compose_with_every_other_kind_on_four_ranks():
    _compare(4, FOUR_RANKS)


@pytest.mark.slow
@pytest.mark.multiprocess
def test_every_schedule_on_two_ranks_trains_as_one_process_does():
    _compare(2, TWO_RANKS)


def _compare(num_ranks: int, cases: dict[str, dict[str, Any]]) -> None:
    results = run_ranks(num_ranks, _WORKER, list(cases.values()))
    for place, (name, case) in enumerate(cases.items()):
        expected = reference(case)
        assert expected[-2] < 0.9 * expected[0], "the reference must learn, or nothing is shown"
        for rank in range(num_ranks):
            found = results[rank][place]["losses"]
            assert found == pytest.approx(expected, rel=case.get("tolerance", 2e-5)), (name, rank)
        copies = [copy for result in results for copy in result[place]["tied"]]
        assert len(set(copies)) <= 1, f"{name}: the copies of the embedding drifted apart"
        assert bool(copies) == bool(case.get("changes", {}).get("tie_word_embeddings"))
