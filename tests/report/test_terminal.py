"""The terminal views: they fit, they lose nothing that matters, they take no markup from users."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from msgspec.structs import replace
from tests.report.drawn import drawn as shown
from tests.report.records import (
    a_ledger,
    a_loss_check,
    a_profile,
    a_row,
    an_environment,
    findings,
)

from ridgeline.records import Distribution, Ledger, Verdict
from ridgeline.report.page import draw_page
from ridgeline.report.views.doctor import profile_document
from ridgeline.report.views.tune import ledger_document, patch_header
from ridgeline.tune.billing import RunTerms, billed


def words(text: str) -> str:
    return " ".join(text.split())


@pytest.mark.parametrize("width", [60, 80, 100, 120, 200])
def test_views_fit_the_terminal(width: int) -> None:
    for view in (
        profile_document(a_profile(), findings(), Verdict.COMPUTE_BOUND),
        ledger_document(a_ledger()),
    ):
        assert max(len(line) for line in shown(view, width).splitlines()) <= width


@pytest.mark.parametrize("width", [80, 120])
def test_the_doctor_says_verdict_limit_phases_memory_and_what_to_do(width: int) -> None:
    text = shown(profile_document(a_profile(), findings(), Verdict.COMPUTE_BOUND), width)
    assert "compute-bound: time goes into arithmetic" in text
    assert "53 % of the hardware limit" in text
    for phase in ("data", "forward", "backward", "optimizer", "other"):
        assert phase in text
    assert "communication" not in text
    assert "activations" in text
    assert "aten::addmm" in text
    for finding in findings():
        assert finding.summary[:40] in text
        assert finding.where[0] in text
    assert text.index("1.25–1.62×") < text.index("1.06–1.12×") < text.index("1.02–1.10×")


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("examples/train_gpt.py --layers 4", "train_gpt.py"),
        ("python -m pytorch3dunet.train --config a.yml", "pytorch3dunet.train"),
        ("torchrun --nproc-per-node 2 src/train.py", "train.py"),
        ("/opt/env/bin/recbole --model BPR", "recbole"),
    ],
)
def test_a_profile_is_headed_by_what_was_run(command: str, name: str) -> None:
    profile = a_profile(environment=an_environment(command=command.split()))
    text = shown(profile_document(profile, [], Verdict.COMPUTE_BOUND))
    assert text.startswith(f"{name} on AMD EPYC")


def test_a_script_without_findings_is_told_what_that_means() -> None:
    def without_findings(**facts: Any) -> str:
        return shown(profile_document(a_profile(**facts), [], Verdict.COMPUTE_BOUND), 200)

    text = without_findings(limit_fraction=0.93)
    assert "Nothing worth doing: 7 % from the limit." in text
    assert "What to do" not in text
    far = without_findings(limit_fraction=0.01)
    assert "No cure is known for what was seen, though the step is 99 % from the limit." in far
    settings = replace(a_profile().settings, cpu_wait_seconds=0.8 * a_profile().step_seconds.mean)
    assert "80 % of the step waits for a core" in without_findings(settings=settings)


def test_an_inference_profile_speaks_of_calls() -> None:
    text = shown(profile_document(a_profile(kind="inference"), [], Verdict.MEMORY_BOUND))
    assert "60 calls after 12 of warm-up" in text
    assert "median call" in text


def test_warnings_and_values_that_are_not_finite_are_shown() -> None:
    profile = a_profile(non_finite=3, warnings=["rank 1 was not watched"], steady=False)
    text = shown(profile_document(profile, [], Verdict.HOST_BOUND))
    assert "3 steps had a loss or gradients that were not finite" in text
    assert "rank 1 was not watched" in text
    assert "not yet steady" in text


def test_what_was_measured_on_a_crowded_machine_is_said_to_be_in_the_first_line() -> None:
    quiet = a_profile()
    wait = replace(quiet.settings, cpu_wait_seconds=0.4 * quiet.step_seconds.mean)
    text = shown(profile_document(replace(quiet, settings=wait), [], Verdict.MEMORY_BOUND))
    assert "memory-bound (on a crowded machine): time goes" in text


def test_an_empty_profile_does_not_stop_the_view() -> None:
    profile = a_profile(
        phases={},
        operators=[],
        mfu=None,
        samples_per_second=None,
        tokens_per_second=None,
        limit_fraction=0.0,
        memory=msgspec.structs.replace(
            a_profile().memory,
            weights_bytes=0,
            gradients_bytes=0,
            optimizer_bytes=0,
            activations_bytes=0,
            other_bytes=0,
        ),
    )
    assert "from the limit was not looked at" in shown(
        profile_document(profile, [], Verdict.INPUT_BOUND)
    )


def test_brackets_in_the_users_names_are_text_and_no_markup() -> None:
    profile = a_profile(environment=an_environment(command=["[bold]train[/].py", "--x"]))
    hostile = [msgspec.structs.replace(findings()[0], summary="[red]x[/nope]", where=["[b].py:1"])]
    text = shown(profile_document(profile, hostile, Verdict.COMPUTE_BOUND))
    assert "[red]x[/nope]" in text
    assert "[b].py:1" in text


def test_the_ledger_ends_on_the_gain_of_the_whole_stack() -> None:
    text = shown(ledger_document(a_ledger()), 120)
    assert "2.31× faster [2.24, 2.37], verified" in text
    assert "within the seed spread of 0.058" in text
    for path in ("ridgeline-tune/stack.toml", "ridgeline-tune/report.html"):
        assert path in text


def test_steps_totals_and_headline_are_one_set_of_numbers() -> None:
    rows = [
        a_row("bf16-autocast", 2.0, 2.0, step_seconds=3.05),  # timed when the machine was busy
        a_row("fused-optimizer", 1.25, 2.5, step_seconds=0.31),
    ]
    ledger = a_ledger(
        rows=rows,
        stack_rows=["bf16-autocast", "fused-optimizer"],
        cumulative=2.4,
        step_seconds=(1.2, 0.5),
    )
    text = shown(ledger_document(ledger), 130)
    first, last = (line for line in text.splitlines() if line.startswith("✓"))
    assert "600 ms" in first, "half of the headline's step, whatever the clock said that day"
    assert "2.40×" in last
    assert "500 ms" in last
    assert "1.20 s → 500 ms per step: 2.40× faster" in text


@pytest.mark.parametrize("width", [80, 120])
def test_every_row_is_there_and_a_rejected_one_says_why(width: int) -> None:
    text = words(shown(ledger_document(a_ledger()), width))
    for row in a_ledger().rows:
        assert row.technique[:20] in text
    for part in ("does not apply", "changes the training", "workers only add"):
        assert part in text


def test_a_row_that_was_removed_again_is_not_ticked() -> None:
    rows = [
        a_row("fused-optimizer", 1.1, 1.1),
        a_row("torch-compile", 1.2, 1.32),
        a_row("torch-compile", 0.99, 1.1, stage="leave-one-out", kept=False, reason="no gain left"),
    ]
    ledger = a_ledger(rows=rows, stack_rows=["fused-optimizer"], cumulative=1.1)
    lines = shown(ledger_document(ledger), 120).splitlines()
    assert [line for line in lines if line.startswith("✓")] == [
        line for line in lines if "fused-optimizer" in line
    ]
    assert any("torch-compile, re-tried" in line and "no gain left" in line for line in lines)
    assert any("dropped again" in line for line in lines)


def test_a_ledger_of_an_interrupted_run_says_so() -> None:
    ledger = a_ledger(complete=False, tuned=None, stack_rows=[], samples={}, loss_check=None)
    text = shown(ledger_document(ledger))
    assert "interrupted: proven so far" in text
    assert "2.31× faster" in text


def test_a_ledger_where_nothing_survived_claims_nothing() -> None:
    ledger = a_ledger(
        rows=[a_row("loader-workers", 0.9, 1.0, kept=False, reason="slower")],
        stack_rows=[],
        cumulative=1.0,
        cumulative_ci=(1.0, 1.0),
        tuned=None,
        notes=["the budget ran out"],
    )
    text = shown(ledger_document(ledger))
    assert "no technique survived measurement" in text
    assert "faster" not in text.replace("faster beyond noise", "")
    assert "the budget ran out" in text
    untried = shown(ledger_document(msgspec.structs.replace(ledger, rows=[])))
    assert "no technique was measured" in untried


def test_long_steps_among_short_ones_are_in_the_step_that_a_ledger_names() -> None:
    uneven = Distribution.of([0.005] * 18 + [1.2, 1.2])
    ledger = a_ledger(
        baseline=msgspec.structs.replace(a_profile(), step_seconds=uneven),
        rows=[], stack_rows=[], cumulative=1.0, cumulative_ci=(1.0, 1.0), tuned=None,
        samples={}, skipped={"compile": "worth -2.1% at best"}, step_seconds=None,
    )  # fmt: skip
    text = " ".join(shown(ledger_document(ledger)).split())
    assert "125 ms (median 5.00 ms) per step" in text
    assert "none fits this script and could gain a percent of it" in text
    late = {"compile": "not begun: it takes some 308 s, and 34 s were left"}
    text = " ".join(shown(ledger_document(msgspec.structs.replace(ledger, skipped=late))).split())
    assert "none could be in the time that was left" in text


def test_a_failed_loss_check_is_not_called_verified() -> None:
    check = a_loss_check(passed=False, summary="RMS difference 0.4 over a seed spread of 0.05")
    text = shown(ledger_document(a_ledger(loss_check=check)))
    assert "verified" not in text.splitlines()[-6]
    assert "failed its loss check" in text


def test_a_stack_that_did_not_gain_is_not_called_faster() -> None:
    text = shown(ledger_document(a_ledger(cumulative=0.98, cumulative_ci=(0.95, 1.01))))
    assert "0.98× the speed" in text
    assert "× faster" not in text


def a_billed_ledger(usd_per_hour: float = 500.0) -> Ledger:
    return billed(a_ledger(), RunTerms(run_hours=100.0, usd_per_hour=usd_per_hour))


@pytest.mark.parametrize("width", [60, 80, 120])
def test_the_bill_says_what_the_run_costs_row_by_row(width: int) -> None:
    view = shown(ledger_document(a_billed_ledger()), width)
    assert max(len(line) for line in view.splitlines()) <= width
    text = words(view)
    assert "at $500 an hour" in text
    assert "--run-hours 100" in text
    assert "$50,000 → $21,600 [$21,100, $22,300]" in text
    bill = view[view.index("optimisation") :]
    for cell in ("as it stood", "$50,000", "autocast-bf16", "65.4 h", "$32,700", "$21,600"):
        assert cell in bill
    assert "loader-workers" not in bill, "what is not in the stack costs nothing"


def test_what_a_technique_costs_stands_below_its_row() -> None:
    text = words(shown(ledger_document(a_billed_ledger()), 80))
    assert "costs: Nothing; needs floating-point parameters" in text
    assert "random augmentation" not in text, "rejected rows cost nothing"


def test_without_the_length_of_a_run_there_is_no_bill() -> None:
    assert "A run of" not in shown(ledger_document(a_ledger()))


def test_a_patch_begins_with_its_ledger_and_every_line_of_it_is_a_comment() -> None:
    header = patch_header(a_billed_ledger())
    assert all(line.startswith("#") and line == line.rstrip() for line in header.splitlines())
    for said in (
        "2.31× faster [2.24, 2.37], verified",
        "fused-optimizer: 1.11×",
        "costs: Nothing; needs",
        "whole stack, measured",
        "$50,000 → $21,600",
    ):
        assert said in header


def a_ledger_that_compiles(startup_seconds: float, **terms: float) -> Ledger:
    before = a_ledger()
    rows = [
        msgspec.structs.replace(row, startup_seconds=startup_seconds)
        if row.technique == "torch-compile"
        else row
        for row in before.rows
    ]
    return billed(msgspec.structs.replace(before, rows=rows), RunTerms(**terms))


def test_a_later_start_says_after_how_many_steps_it_has_paid() -> None:
    # 14.2 s over a step that went from 106.5 ms to 97.7 ms.
    ledger = a_ledger_that_compiles(14.2)
    (row,) = [row for row in ledger.rows if row.technique == "torch-compile"]
    saved = row.baseline_step_seconds - row.step_seconds
    assert row.pays_after_steps == pytest.approx(14.2 / saved)
    document = ledger_document(ledger)
    for view in (shown(document, 80), patch_header(ledger), draw_page(document)):
        assert "starts 14.2 s later, pays after 1,61" in words(view)


def test_a_run_that_is_too_short_for_a_slow_start_is_told_so() -> None:
    short = a_ledger_that_compiles(14.2, steps_to_train=1000.0)
    assert "not within this run of 1,000" in words(shown(ledger_document(short), 80))
    long = a_ledger_that_compiles(14.2, steps_to_train=10_000.0)
    assert "not within this run" not in words(shown(ledger_document(long), 80))


def test_a_start_like_any_other_is_not_spoken_of() -> None:
    for startup_seconds in (0.3, -2.0):
        text = shown(ledger_document(a_ledger_that_compiles(startup_seconds)), 80)
        assert "later" not in text


def test_a_line_number_stays_whole_at_80_columns_however_long_the_path() -> None:
    path = "/home/someone/projects/" + "a_folder_of_some_length/" * 4 + "train.py:1234"
    found = [msgspec.structs.replace(findings()[0], where=[path, "b.py:2", "c.py:3", "d.py:4"])]
    lines = shown(profile_document(a_profile(), found, Verdict.INPUT_BOUND), width=80).splitlines()
    assert [line for line in lines if line.rstrip().endswith("train.py:1234")]
    assert not [line for line in lines if "d.py:4" in line]
