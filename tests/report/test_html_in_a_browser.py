"""The pages in a real browser: all plots are drawn, nothing fails, a phone scrolls one way."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from pathlib import Path

import msgspec
import pytest
from tests.report.estimates import (
    a_timeline,
    an_estimate,
    renamed,
    some_curves,
    some_estimates,
)
from tests.report.records import (
    a_ledger,
    a_loss_check,
    a_profile,
    a_row,
    an_environment,
    an_operator,
    findings,
)
from tests.report.test_html import doctor_page, tune_page

from ridgeline.plan.model_roofline import model_roofline
from ridgeline.records import Ledger, Verdict
from ridgeline.report.page import draw_page
from ridgeline.report.views.predict_training import estimate_document
from ridgeline.report.views.roofline import roofline_document

BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--virtual-time-budget=8000",
    "--window-size=1400,900",
    "--dump-dom",
)
WATCH = "<script>window.failures = []; onerror = (text) => { failures.push(text); };</script>"
TELL = """<script>
addEventListener("load", () => setTimeout(() => parent.postMessage(JSON.stringify({
  width: innerWidth,
  content: document.documentElement.scrollWidth,
  plots: document.querySelectorAll(".plot").length,
  drawn: document.querySelectorAll(".plot .cartesianlayer .subplot").length,
  failures: failures,
}), "*"), 1500))</script>"""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(BROWSER is None, reason="needs chromium or google-chrome"),
]


def a_ledger_of_long_names() -> Ledger:
    """Names without a place to break, wherever a user can put one."""
    name = "x" * 160
    environment = an_environment(command=[name, name], cwd=name, variables={name: name})
    operator = an_operator(name, name, "forward", 0.1, 1e9, 1e6)
    profile = a_profile(environment=environment, operators=[operator], warnings=[name])
    finding = msgspec.structs.replace(
        findings()[0], summary=name, cure=name, where=[name], evidence={name: name}
    )
    row = a_row(name, 1.2, 1.2, options={name: name}, verification=name)
    return a_ledger(
        baseline=profile,
        tuned=profile,
        environment=environment,
        findings=[finding],
        notes=[name],
        rows=[row],
        stack_rows=[name],
        loss_check=a_loss_check(summary=name),
    )


def a_plan() -> str:
    estimates = some_estimates()
    estimates.append(renamed(an_estimate(3.0), "x" * 160))
    document = estimate_document(
        estimates,
        title="x" * 160,
        pareto=estimates,
        timeline=a_timeline("zero-bubble", 8),
        scaling=some_curves(),
    )
    return draw_page(document)


def a_page(name: str) -> str:
    if name == "plan":
        return a_plan()
    if name == "roofline":
        return draw_page(roofline_document(model_roofline("mixtral-8x7b", ["h100", "mi300x"])))
    if name == "tune":
        return tune_page(a_ledger())
    long_names = a_ledger_of_long_names()
    if name == "tune with long names":
        return tune_page(long_names)
    if name == "doctor with long names":
        return doctor_page(long_names.baseline, long_names.findings, Verdict.MEMORY_CAPACITY_BOUND)
    return doctor_page(a_profile(), findings(), Verdict.COMPUTE_BOUND)


@pytest.mark.parametrize("width", [320, 390, 1280])
@pytest.mark.parametrize(
    "name",
    ["tune", "doctor", "tune with long names", "doctor with long names", "plan", "roofline"],
)
def test_a_page_draws_all_its_plots_and_fits_the_window(
    tmp_path: Path, name: str, width: int
) -> None:
    page = a_page(name)
    page = page.replace("<style>", f"{WATCH}<style>", 1).replace("</body>", f"{TELL}</body>")
    (tmp_path / "page.html").write_text(page, encoding="utf-8")
    # The frame is what is narrow: a headless window is never below 500 pixels.
    (tmp_path / "frame.html").write_text(
        f'<iframe src="page.html" style="width:{width}px;height:900px;border:0"></iframe>'
        "<pre></pre><script>onmessage = (event) => {"
        ' document.querySelector("pre").textContent = event.data; };</script>'
    )
    assert BROWSER is not None
    command = [BROWSER, *FLAGS, f"--user-data-dir={tmp_path / 'profile'}"]
    command.append((tmp_path / "frame.html").as_uri())
    shown = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    told = re.search(r"<pre>(\{.*?\})</pre>", shown.stdout)
    assert told is not None, shown.stdout[:2000]
    seen = json.loads(html.unescape(told.group(1)))
    assert seen["failures"] == []
    assert seen["width"] == width
    assert seen["content"] <= width
    assert seen["plots"] == seen["drawn"] > 0
