"""What `ridgeline doctor` shows of a script: verdict, phases, memory, operators, what to do."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import PurePath

from ridgeline import quantity
from ridgeline.records import Environment, Finding, Operator, StepProfile, Verdict
from ridgeline.records.measurement import script_of
from ridgeline.report import document as doc
from ridgeline.report import figures
from ridgeline.report.plots import MEMORY
from ridgeline.report.views.step_phases import Runs, phase_sections

MEANING = {
    Verdict.INPUT_BOUND: "the step waits for its next batch or request",
    Verdict.HOST_BOUND: "Python and dispatch cost more than the arithmetic they start",
    Verdict.SYNC_BOUND: "the host stops and waits for the device",
    Verdict.MEMORY_BOUND: "time goes into moving bytes, not into arithmetic",
    Verdict.COMPUTE_BOUND: "time goes into arithmetic",
    Verdict.COMMUNICATION_BOUND: "time goes into exchanging data with other ranks",
    Verdict.MEMORY_CAPACITY_BOUND: "memory is full: it decides the batch and the layout",
    Verdict.UNDECIDED: "it computes, and its operators were not looked at: arithmetic, memory or "
    "the host",
}
ROOFLINE_NOTE = (
    "Each circle is an operator, larger the more time it takes, coloured by phase. On the line it "
    "can get no faster; the distance below the line is what is left to gain."
)
OPERATORS = 12
_NEAR = 0.5
"""From this share of the hardware's limit on, having found nothing means little is to be had."""


def profile_document(
    profile: StepProfile, findings: Sequence[Finding], verdict: Verdict
) -> doc.ReportDocument:
    """What was measured of a script, and what is worth doing about it."""
    runs = [("this run", profile)]
    doubts = [f"from {profile.steps} step{'s' * (profile.steps > 1)}"] * (profile.steps < 4)
    doubts += ["on a crowded machine"] * profile.is_crowded
    how_sure = f" ({', '.join(doubts)})" if doubts else ""
    to_do = finding_section("What to do, most worthwhile first", profile, findings)
    shown: list[doc.Block] = [
        doc.Lead(
            title=verdict.value + how_sure,
            subtitle=_meaning(verdict, profile),
            origin=origin(profile),
            chip=doc.Phrase(limit_statement(profile)),
            meter=profile.limit_fraction,
        ),
        doc.Values(headline_figures(profile)),
        doc.Only("page", [to_do]),
        *phase_sections(runs, {"this run": profile.step_samples}),
        *memory_section(runs),
        *roofline_section(runs),
    ]
    if profile.operators:
        shown.append(doc.Chapter("Top operators", [_operators(profile)]))
    shown += [doc.Only("page", _losses(profile)), *_places(profile)]
    shown += [doc.Lines(_warnings(profile), "warning"), *files_statement(profile)]
    shown += [
        doc.Only("terminal", [to_do]),
        doc.Only("page", [environment_section(profile.environment)]),
    ]
    title = f"{script_name(profile.environment)}: {verdict.value}"
    return doc.ReportDocument(title, shown)


def _meaning(verdict: Verdict, profile: StepProfile) -> str:
    """What the verdict says, in a sentence."""
    if verdict is not Verdict.UNDECIDED or not profile.operators:
        return MEANING[verdict]
    waited = quantity.percent(profile.crowded_share)
    return (
        f"its threads waited for a core for {waited} of the step, and got "
        f"{quantity.seconds(profile.settings.cpu_seconds)} of CPU time in it: what bounds it on a "
        "quiet machine cannot be told from that"
    )


# -- words -----------------------------------------------------------------------------------------


def script_name(environment: Environment) -> str:
    """The script without its folders, e.g. `train_gpt.py`; the module that `python -m` runs."""
    command = environment.command
    modules = [module for flag, module in itertools.pairwise(command) if flag == "-m"]
    words = [word for word in command if not word.startswith("-")]
    return PurePath(script_of(command) or next(iter(modules + words), "script")).name


def machine(environment: Environment) -> str:
    """The machine that a script ran on, in a few words."""
    cores = f"{environment.cpu_count} CPUs"
    if environment.device in ("", environment.host_cpu, "cpu"):
        return f"{environment.host_cpu}, {cores}"
    return f"{environment.device} on {environment.host_cpu}, {cores}"


def origin(profile: StepProfile) -> doc.Words:
    """What was measured, where, and how much stands behind the numbers."""
    environment = profile.environment
    unit = "step" if profile.kind == "training" else "call"
    count = f"{profile.steps} {unit}{'s' if profile.steps != 1 else ''}"
    measured = f"{count} after {profile.warmup_steps} of warm-up"
    if profile.world_size > 1:
        measured += f", rank {profile.rank} of {profile.world_size}"
    measured += "" if profile.steady else ", not yet steady"
    return (
        doc.Phrase(script_name(environment), "strong"),
        f" on {machine(environment)}, torch {environment.torch}\n{measured}",
    )


def limit_statement(profile: StepProfile) -> str:
    """How near the hardware's limit the step is."""
    if not profile.operators:
        return "how far from the limit was not looked at"
    return f"{quantity.percent(profile.limit_fraction)} of the hardware limit"


def headline_figures(profile: StepProfile) -> list[tuple[str, doc.Words]]:
    """The figures to read first, with their labels."""
    step, times = ("step" if profile.kind == "training" else "call"), profile.step_seconds
    shown: list[tuple[str, doc.Words]] = [
        (f"median {step}", quantity.seconds(times.p50)),
        ("p95", quantity.seconds(times.p95)),
    ]
    if profile.kind == "inference" and times.p50 > 0:
        shown.append(("p99", quantity.seconds(times.p99)))
        shown.append(("p99/p50", quantity.ratio(times.p99 / times.p50)))
    if profile.samples_per_second is not None:
        shown.append(("samples/s", quantity.count(profile.samples_per_second)))
    if profile.tokens_per_second is not None:
        shown.append(("tokens/s", quantity.count(profile.tokens_per_second)))
    if profile.mfu is not None:
        shown.append(("MFU", quantity.percent(profile.mfu)))
    if profile.peak_memory_bytes:
        shown.append(("peak memory", quantity.memory(profile.peak_memory_bytes)))
    return shown


def files_statement(profile: StepProfile) -> list[doc.Block]:
    """What the script wrote while it was measured, and that it is gone; nothing if unknown."""
    seen = profile.side_effects
    if seen is None:
        return []
    offline = f" Kept offline: {', '.join(seen.offline)}." * bool(seen.offline)
    if seen.unprotected:
        said = f"NOT all as they were: {'; '.join(seen.unprotected)}."
    elif seen.files == 0:
        said = "as they were; the script wrote none."
    else:
        folder = profile.environment.cwd.rstrip("/") + "/"
        names = ", ".join(path.removeprefix(folder) for path in seen.first_files)
        more = ", …" if seen.files > len(seen.first_files) else ""
        count = f"{seen.files} file" + "s" * (seen.files != 1)
        said = f"as they were; what the script wrote ({count}: {names}{more}) is undone."
    return [doc.Paragraph(f"Your files: {said}{offline}", "dim")]


def _warnings(profile: StepProfile) -> list[str]:
    steps = f"{profile.non_finite} step" + "s" * (profile.non_finite != 1)
    strange = f"{steps} had a loss or gradients that were not finite"
    return [strange] * bool(profile.non_finite) + list(profile.warnings)


# -- memory, operators, places ---------------------------------------------------------------------


def memory_section(runs: Runs) -> list[doc.Block]:
    """What the bytes at the peak were for, and the memory over a step."""
    sizes = [{kind: getattr(run.memory, f"{kind}_bytes") for kind in MEMORY} for _, run in runs]
    shown: list[doc.Block] = []
    if any(sum(split.values()) for split in sizes):
        bars = [
            doc.Bar(
                label if len(runs) > 1 else "",
                quantity.memory(run.peak_memory_bytes),
                [doc.BarPart(kind, size, quantity.memory(size), MEMORY[kind])
                 for kind, size in split.items() if size > 0],
            )
            for (label, run), split in zip(runs, sizes, strict=True)
        ]  # fmt: skip
        labels = [label for label, _ in runs] if len(runs) > 1 else ["at the peak"]
        columns = (doc.words("for"), *(doc.Column("bytes", label) for label in labels))
        rows = [
            (doc.Key(kind, look), *(split[kind] for split in sizes))
            for kind, look in MEMORY.items() if any(split[kind] for split in sizes)
        ]  # fmt: skip
        shown.append(doc.Bars(bars, doc.DataTable(columns, rows)))
    elif any(run.peak_memory_bytes for _, run in runs):
        shown.append(
            doc.Paragraph(", ".join(quantity.memory(run.peak_memory_bytes) for _, run in runs))
        )
    shown += doc.figure("memory", figures.memory_over_time(runs))
    return [doc.Chapter("Memory at the peak", shown)] if shown else []


def roofline_section(runs: Runs) -> list[doc.Block]:
    """Operators under the roof, on the page."""
    roof = figures.roof_of([op for _, run in runs for op in run.operators])
    drawn = doc.figure("roofline", figures.roofline(runs, roof), 440)
    return [doc.Only("page", [doc.Chapter("Roofline", drawn, ROOFLINE_NOTE)])] if drawn else []


def _operators(profile: StepProfile) -> doc.DataTable:
    columns = (
        doc.name("operator"),
        doc.Column("shapes", kind="name", wide=True),
        doc.words("phase", wide=True),
        doc.Column("share"),
        doc.Column("operator_seconds", "time"),
        doc.Column("calls", wide=True),
        doc.Column("flops_per_byte", "FLOP/byte"),
        doc.Column("attained"),
        doc.Column("limit_share", "of limit"),
        doc.words("bound"),
    )
    rows = [_operator(one, profile.step_seconds.mean) for one in profile.operators[:OPERATORS]]
    return doc.DataTable(columns, rows)


def _operator(one: Operator, step_seconds: float) -> tuple[str | float | None, ...]:
    seconds, attained = one.seconds, None
    if one.flops and seconds:
        attained = quantity.scaled(one.flops / seconds, "FLOP/s")
    elif one.bytes and seconds:
        attained = quantity.scaled(one.bytes / seconds, "B/s")
    return (
        one.name,
        one.shapes,
        one.phase,
        seconds / step_seconds if step_seconds else None,
        seconds,
        quantity.count(one.calls),
        one.flops / one.bytes if one.bytes else 0.0,
        attained,
        one.limit_seconds / seconds if seconds else None,
        one.bound,
    )


def _losses(profile: StepProfile) -> list[doc.Block]:
    drawn = doc.figure("losses", figures.loss_curve(profile))
    return [doc.Chapter("Loss while measuring", drawn)] if drawn else []


def _places(profile: StepProfile) -> list[doc.Block]:
    """Lines of the script that wait, break graphs, or are hot; on the page."""
    rows: list[tuple[str | float, ...]] = [
        (str(point.site), f"waits: {point.kind}", quantity.count(point.calls), point.seconds)
        for point in profile.sync_points
    ]
    rows += [
        (str(broken.site or ""), f"graph break: {broken.reason}", quantity.count(broken.count), "")
        for broken in profile.graph_breaks
    ]
    rows += [
        (str(line.site), f"in {line.phase}: {line.leaf}", quantity.percent(line.share), "")
        for line in profile.hot_lines
    ]
    columns = (doc.words("line"), doc.words("what", "what happens there"), doc.Column("per step"),
               doc.Column("seconds", "time"))  # fmt: skip
    section = doc.Chapter("Lines of the script", [doc.DataTable(columns, rows)])
    return [doc.Only("page", [section])] if rows else []


def environment_section(facts: Environment) -> doc.Chapter:
    """The machine, the versions and the command behind the numbers."""
    pairs = [
        ("command", " ".join(facts.command)),
        ("folder", facts.cwd),
        ("date", facts.date),
        ("device", facts.device),
        ("host CPU", f"{facts.host_cpu}, {facts.cpu_count} CPUs"),
        ("versions", f"Python {facts.python}, torch {facts.torch}, ridgeline {facts.ridgeline}"),
        *facts.variables.items(),
    ]
    return doc.Chapter("Environment", [doc.Values(pairs, listed=True)])


# -- findings --------------------------------------------------------------------------------------


def finding_section(title: str, profile: StepProfile, found: Sequence[Finding]) -> doc.Block:
    """What to do, most worthwhile first; or that there is nothing worth doing."""
    if found:
        return doc.Chapter(title, [doc.AdviceList([_finding(one) for one in found])])
    return doc.Paragraph(_nothing_found(profile), "good")


def _nothing_found(profile: StepProfile) -> str:
    """Why there is no finding: nothing to gain, no cure that is known, or too little seen."""
    if profile.is_crowded:
        waited = quantity.percent(profile.crowded_share)
        return (
            f"Nothing in the script was found to change, but {waited} of the step waits for a"
            " core: what it needs on a quiet machine is not known."
        )
    if not profile.operators:
        return "Nothing was found in the phases alone; operators were not looked at."
    distance = quantity.percent(max(0.0, 1 - profile.limit_fraction))
    if profile.limit_fraction >= _NEAR:
        return f"Nothing worth doing: {distance} from the limit."
    return f"No cure is known for what was seen, though the step is {distance} from the limit."


def _finding(one: Finding) -> doc.Advice:
    note = f"{one.cause}, {quantity.percent(one.share)} of the step"
    if one.technique is not None:
        note += f"; ridgeline tune tries {one.technique}"
    sure = "sure" if one.confidence >= 0.85 else "likely" if one.confidence >= 0.6 else "possible"
    return doc.Advice(
        worth=_gain(one),
        sureness=sure,
        title=one.summary,
        cure=one.cure,
        places=one.where,
        facts=[_evidence(key, value) for key, value in one.evidence.items() if key != "share"],
        note=note,
    )


def _gain(one: Finding) -> str:
    """The speed-up to expect of a cure."""
    if one.gain_high <= 1.0:
        return "no time"
    return quantity.ratio_range(one.gain_low, one.gain_high)


def _evidence(key: str, value: float | str) -> tuple[str, str]:
    """A number behind a finding; the unit in its key becomes the unit of its value."""
    if isinstance(value, str):
        return quantity.without_unit(key), value
    return quantity.without_unit(key), quantity.shown(key, value)
