"""The report as one HTML file that needs nothing else: no network, no neighbouring files.

`write_report` draws a ledger (`ridgeline tune`), `write_profile_report` a profile with its
findings (`ridgeline doctor`). The frame around both is in `page_frame.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ridgeline import quantity
from ridgeline.records import Finding, Ledger, StepProfile, Verdict
from ridgeline.records.store import write_atomically
from ridgeline.report import figures, sections, wording
from ridgeline.report.figures import Figure, Roof
from ridgeline.report.markup import Markup, element, joined
from ridgeline.report.page_frame import drawn, whole_page
from ridgeline.report.run_bill import bill_title

ROOFLINE_NOTE = (
    "Each circle is an operator, larger the more time it takes, coloured by phase. On the line it "
    "can get no faster; the distance below the line is what is left to gain."
)


def write_report(path: Path, ledger: Ledger, roof: Roof | None = None) -> None:
    """Write the report of a tune."""
    _write(path, report_page(ledger, roof))


def write_profile_report(
    path: Path,
    profile: StepProfile,
    findings: Sequence[Finding],
    verdict: Verdict,
    roof: Roof | None = None,
) -> None:
    """Write the report of a doctor's visit."""
    _write(path, profile_page(profile, findings, verdict, roof))


def _write(path: Path, page: str) -> None:
    write_atomically(path, page.encode())


def report_page(ledger: Ledger, roof: Roof | None = None) -> str:
    """The page of a ledger."""
    runs = [("as it stood", ledger.baseline)]
    if ledger.tuned is not None:
        runs.append(("tuned", ledger.tuned))
    plots: dict[str, Figure] = {}
    stack = wording.stack_rows(ledger)
    body = [_ledger_header(ledger)]
    if stack:
        note = "Each technique was measured side by side with the stack above it."
        waterfall = sections.step_waterfall(ledger)
        body.append(sections.section("From slow to fast", note, waterfall))
    if ledger.rows:
        note = "Kept only if the whole interval is above 1 and the result stays the same."
        body.append(sections.section("Ledger", note, sections.ledger_table(ledger)))
    if ledger.bill is not None:
        cost = sections.run_bill(ledger, ledger.bill)
        body.append(sections.section("What the whole run costs", bill_title(ledger.bill), *cost))
    body += _time_sections(runs, ledger.samples, plots)
    body += _roofline_section(runs, roof, plots)
    body += _memory_section(runs, plots)
    if ledger.loss_check is not None:
        figure = figures.losses(ledger.loss_check)
        places = drawn("losses", figure, plots)
        summary = ledger.loss_check.summary
        body.append(sections.section("Does it still train the same model?", summary, *places))
    body.append(
        sections.section(
            "What was found before tuning",
            "",
            sections.findings(ledger.baseline, ledger.findings),
        )
    )
    body.append(sections.section("Environment", "", sections.environment(ledger.environment)))
    title = f"{wording.script_name(ledger.environment)}: {wording.claim(ledger)}"
    return whole_page(title, body, plots)


def profile_page(
    profile: StepProfile,
    findings: Sequence[Finding],
    verdict: Verdict,
    roof: Roof | None = None,
) -> str:
    """The page of a profile."""
    runs = [("this run", profile)]
    plots: dict[str, Figure] = {}
    body = [
        _profile_header(profile, verdict),
        sections.section("What to do", "", sections.findings(profile, findings)),
    ]
    body += _time_sections(runs, {"this run": profile.step_samples}, plots)
    body += _roofline_section(runs, roof, plots)
    if profile.operators:
        body.append(
            sections.section("Top operators", "Per step.", sections.operator_table(profile))
        )
    body += _memory_section(runs, plots)
    loss = drawn("losses", figures.loss_curve(profile), plots)
    if loss:
        body.append(sections.section("Loss while measuring", "", *loss))
    places = sections.places_table(profile)
    if places is not None:
        body.append(sections.section("Lines of the script", "", places))
    body.append(sections.section("Environment", "", sections.environment(profile.environment)))
    title = f"{wording.script_name(profile.environment)}: {verdict.value}"
    return whole_page(title, body, plots)


def _ledger_header(ledger: Ledger) -> Markup:
    before, after = wording.ledger_steps(ledger)
    stacked = bool(wording.stack_rows(ledger))
    interval = quantity.interval(*ledger.cumulative_ci)
    facts = [("median step before", quantity.seconds(before))]
    if stacked:
        facts.append(("median step tuned", quantity.seconds(after)))
    facts.append(("peak memory before", quantity.memory(ledger.baseline.peak_memory_bytes)))
    if ledger.tuned is not None:
        facts.append(("peak memory tuned", quantity.memory(ledger.tuned.peak_memory_bytes)))
        facts.append(("of the limit, tuned", quantity.percent(ledger.tuned.limit_fraction)))
    good = stacked and ledger.complete and wording.proven(ledger) == "verified"
    return element(
        "header",
        element("p", _origin(ledger.baseline), class_="origin"),
        element(
            "h1",
            wording.claim(ledger),
            element("span", wording.proven(ledger), class_="chip good" if good else "chip"),
        ),
        element("p", f"95 % interval {interval}, measured side by side", class_="sub")
        if stacked
        else "",
        sections.tiles(facts),
        sections.remarks(ledger.notes),
    )


def _profile_header(profile: StepProfile, verdict: Verdict) -> Markup:
    limit = min(100.0, max(0.0, 100 * profile.limit_fraction))
    meter = element("span", class_="meter-fill", style=f"width:{limit:.1f}%")
    warnings = list(profile.warnings)
    if profile.non_finite:
        warnings.insert(0, f"{profile.non_finite} steps had losses or gradients not finite")
    return element(
        "header",
        element("p", _origin(profile), class_="origin"),
        element(
            "h1",
            verdict.value.capitalize(),
            element("span", wording.limit_statement(profile), class_="chip"),
        ),
        element("p", wording.MEANING[verdict].capitalize() + ".", class_="sub"),
        element("div", meter, class_="meter", title=wording.limit_statement(profile)),
        sections.tiles(wording.rates(profile)),
        sections.remarks(warnings),
    )


def _origin(profile: StepProfile) -> Markup:
    environment = profile.environment
    return joined(
        [
            element("b", wording.script_name(environment)),
            f" on {wording.machine(environment)}, torch {environment.torch}; ",
            wording.measured(profile),
        ]
    )


def _time_sections(
    runs: sections.Runs, samples: dict[str, list[float]], plots: dict[str, Figure]
) -> list[Markup]:
    parts = []
    if any(run.phases for _, run in runs):
        parts.append(
            sections.section("Where a step goes", "Mean by phase.", sections.phase_bars(runs))
        )
    labels = {"baseline": "as it stood"}
    series = [(labels.get(name, name), values) for name, values in samples.items()]
    if not any(values for _, values in series):
        series = [(label, run.step_samples) for label, run in runs]
    places = drawn("steps", figures.step_times(series), plots)
    if places:
        parts.append(sections.section("Every timed step", "", *places))
    return parts


def _roofline_section(
    runs: sections.Runs, roof: Roof | None, plots: dict[str, Figure]
) -> list[Markup]:
    if roof is None:
        roof = figures.roof_of([op for _, run in runs for op in run.operators])
    places = drawn("roofline", figures.roofline(runs, roof), plots, height=440)
    return [sections.section("Roofline", ROOFLINE_NOTE, *places)] if places else []


def _memory_section(runs: sections.Runs, plots: dict[str, Figure]) -> list[Markup]:
    bars = sections.memory_bars(runs)
    places = drawn("memory", figures.memory_over_time(runs), plots)
    if not bars and not places:
        return []
    return [sections.section("Memory", "At the peak, and over one step.", bars, *places)]
