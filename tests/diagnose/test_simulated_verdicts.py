"""Verdicts on simulated runs, whose truth is the run again without each of its faults."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from tests.diagnose.labelled_traces import simulated_verdict
from tests.trace.simulated.truth import Truth, cases

from ridgeline.records.finding import TraceFinding

REPRESENTATIVE = (
    "dlrm-healthy", "resnet-loader-item", "decode-item-layer", "decode-eager", "server-prepare",
    "gpt-uncached", "prefill-start-up", "dlrm-pageable", "fsdp-slow-link", "ddp-late-gpu",
    "gpt-stall", "gpt-odd-gemm", "dlrm-ranks-loader-on-all-and-one-late",
    "dlrm-ranks-late-behind-pageable-copies", "diffusion-side-copy-every-step",
    "gpt-side-copy-behind-frees", "dlrm-loader-in-each-step-and-before",
    "gpt-late-module-dearer-than-stalls", "decode-poll-beside-side-copy",
    "resnet-stall-before-the-last-wait", "prefill-slow-softmax-s1-50",
    "gpt-throttled-s20003-15", "diffusion-shared-gpu-s20003-33", "ddp-imbalance-s20001-35",
    "diffusion-python-between-operators", "fsdp-saves", "gpt-optimizer-on-the-host-subtle",
)  # fmt: skip
WITHIN, FLOOR = 0.25, 0.02
"""How far a worth may be off: of the truth, or of the run where that is more."""


@cache
def judged(name: str) -> tuple[Truth, list[TraceFinding]]:
    with TemporaryDirectory() as folder:
        return simulated_verdict(cases()[name], Path(folder))


@pytest.mark.sweep(every=4)
@pytest.mark.parametrize("name", REPRESENTATIVE)
def test_the_first_finding_on_a_simulated_run_is_the_fault_that_costs_most(name: str) -> None:
    truth, found = judged(name)
    shares = {cause: round(worth / truth.duration_us, 2) for cause, worth in truth.by_cause.items()}
    assert found[0].cause in truth.causes, f"{found[0].summary} True worths: {shares}"


@pytest.mark.sweep(every=6)
@pytest.mark.parametrize("name", REPRESENTATIVE)
def test_the_worth_of_a_finding_is_what_its_cure_saves(name: str) -> None:
    assert worth_is_right(name) in (True, None)


def worth_is_right(name: str) -> bool | None:
    """None where nothing bounds the run, or the finding is another one."""
    truth, found = judged(name)
    worth = truth.worth_of(found[0].cause)
    if worth is None or found[0].cause not in truth.causes:
        return None
    return abs(found[0].worth_us - worth) <= max(WITHIN * worth, FLOOR * truth.duration_us)


@pytest.mark.slow
def test_nine_in_ten_worths_on_simulated_runs_are_right() -> None:
    told = [right for name in cases() if (right := worth_is_right(name)) is not None]
    assert sum(told) >= 0.9 * len(told)


@pytest.mark.slow
def test_nearly_all_first_findings_on_simulated_runs_are_right() -> None:
    wrong = [name for name in cases() if judged(name)[1][0].cause not in judged(name)[0].causes]
    assert len(wrong) <= 0.03 * len(cases()), wrong
