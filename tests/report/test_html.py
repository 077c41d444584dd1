"""The page: one file, nothing from the network, nothing of the user's taken for HTML."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
from tests.report.records import (
    a_ledger,
    a_loss_check,
    a_profile,
    a_row,
    an_environment,
    an_operator,
    findings,
)

from ridgeline.cli.show import write_page
from ridgeline.records import Finding, Ledger, Site, StepProfile, SyncPoint, Verdict
from ridgeline.report.page import draw_page
from ridgeline.report.views.doctor import profile_document
from ridgeline.report.views.tune import ledger_document

EVIL = '"><script>alert(1)</script><img src=x onerror=alert(2)>'


def tune_page(ledger: Ledger) -> str:
    return draw_page(ledger_document(ledger))


def doctor_page(profile: StepProfile, found: Sequence[Finding], verdict: Verdict) -> str:
    return draw_page(profile_document(profile, found, verdict))


def own_part(page: str) -> str:
    """The page without plotly.js, which is somebody else's three megabytes."""
    parts = re.split(r"<script>", page)
    assert len(parts) in (1, 3)
    return parts[0] + (parts[2] if len(parts) == 3 else "")


def test_the_report_has_every_part() -> None:
    page = own_part(tune_page(a_ledger()))
    for heading in (
        "From slow to fast",
        "Ledger",
        "Where a step goes",
        "Every timed step",
        "Roofline",
        "Memory at the peak",
        "Does it still train the same model?",
        "What was found before tuning",
        "Environment",
    ):
        assert f"<h2>{heading}</h2>" in page
    assert "2.31× faster" in page
    assert 'class="chip good">verified' in page
    for row in a_ledger().rows:
        assert row.technique in page


def test_the_doctors_page_has_every_part() -> None:
    page = own_part(doctor_page(a_profile(), findings(), Verdict.COMPUTE_BOUND))
    for text in ("compute-bound", "53 % of the hardware limit", "Top operators", "Lines of the"):
        assert text in page
    for finding in findings():
        assert finding.cure in page


def test_a_clean_script_has_a_page_that_says_so() -> None:
    page = doctor_page(a_profile(limit_fraction=0.91), [], Verdict.COMPUTE_BOUND)
    assert "Nothing worth doing: 9 % from the limit." in own_part(page)


def test_each_place_for_a_plot_has_its_figure() -> None:
    page = own_part(tune_page(a_ledger()))
    places = set(re.findall(r'class="plot" id="([\w-]+)"', page))
    data = re.search(r'id="figures">(.*?)</script>', page)
    assert data is not None
    assert set(json.loads(data.group(1))) == places
    assert len(places) == 4


def test_the_page_refers_to_nothing_outside_itself() -> None:
    page = own_part(tune_page(a_ledger()))
    assert not re.search(r"""(src|href|url|import)\s*[=(]\s*["']?\s*(https?:)?//""", page)
    assert "default-src 'none'" in page


def test_every_variable_that_a_plot_is_coloured_by_is_in_the_style_sheet() -> None:
    page = own_part(tune_page(a_ledger()))
    data = re.search(r'id="figures">(.*?)</script>', page)
    assert data is not None
    for name in set(re.findall(r'"(--[\w-]+)"', data.group(1))):
        assert f"{name}:" in page, name


def test_nothing_of_the_users_is_taken_for_html() -> None:
    environment = an_environment(command=[EVIL, EVIL], cwd=EVIL, variables={EVIL: EVIL})
    site = Site(file=EVIL, line=1)
    profile = a_profile(
        environment=environment,
        warnings=[EVIL],
        operators=[an_operator(EVIL, EVIL, "forward", 0.1, 1e9, 1e6)],
        sync_points=[SyncPoint(kind=EVIL, site=site, calls=1.0, seconds=0.1)],
    )
    hostile = [
        msgspec.structs.replace(
            findings()[0], summary=EVIL, cure=EVIL, where=[EVIL], evidence={EVIL: EVIL}
        )
    ]
    ledger = a_ledger(
        baseline=profile,
        environment=environment,
        findings=hostile,
        notes=[EVIL],
        rows=[a_row(EVIL, 1.2, 1.2, options={EVIL: EVIL}, verification=EVIL)],
        stack_rows=[EVIL],
        loss_check=a_loss_check(summary=EVIL),
    )
    for page in (tune_page(ledger), doctor_page(profile, hostile, Verdict.HOST_BOUND)):
        assert page.count("<script>") == 2
        assert "<img" not in own_part(page)
        assert "&lt;script&gt;alert(1)" in page


def test_the_file_is_whole_and_below_five_megabytes(tmp_path: Path) -> None:
    write_page("--out", tmp_path / "new" / "report.html", ledger_document(a_ledger()))
    doctored = profile_document(a_profile(), [], Verdict.COMPUTE_BOUND)
    write_page("--html", tmp_path / "doctor.html", doctored)
    for path in (tmp_path / "new" / "report.html", tmp_path / "doctor.html"):
        assert 1_000_000 < path.stat().st_size < 5_000_000
        assert path.read_text(encoding="utf-8").rstrip().endswith("</html>")


def _without_measurements(ledger: Ledger) -> Ledger:
    bare = a_profile(
        losses=[], memory_timeline=[], operators=[], phases={}, step_samples=[], mfu=None
    )
    return msgspec.structs.replace(
        ledger, baseline=bare, tuned=None, samples={}, loss_check=None, findings=[]
    )


@pytest.mark.parametrize(
    "ledger",
    [
        _without_measurements(a_ledger()),
        _without_measurements(a_ledger(rows=[], stack_rows=[], cumulative=1.0)),
        a_ledger(complete=False, tuned=None, stack_rows=[], cumulative_ci=(0.0, float("inf"))),
        a_ledger(rows=[a_row("x", 1.1, 1.1, ci_low=0.0, ci_high=float("inf"))], stack_rows=["x"]),
        a_ledger(notes=["the budget ran out"]),
    ],
)
def test_a_ledger_with_gaps_still_has_a_page(ledger: Ledger) -> None:
    assert "<h2>Environment</h2>" in own_part(tune_page(ledger))


def test_an_interrupted_ledger_is_not_called_verified() -> None:
    page = own_part(tune_page(a_ledger(complete=False)))
    assert "interrupted: proven so far" in page
    assert 'class="chip good"' not in page
