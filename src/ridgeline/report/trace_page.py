"""The page of a trace: verdict, timeline, flame graph, and a table for every question.

One HTML file that needs nothing else. It draws on canvases with a small script of its own, because
a plotting library would be larger than everything that it shows; the policy in the page forbids it
to fetch anything. What is drawn is limited (`trace/timeline.py`, `trace_rank.py`), and the page
says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ridgeline import quantity
from ridgeline.diagnose.trace_verdict import verdict_of
from ridgeline.records.store import write_atomically
from ridgeline.records.trace_finding import TraceFinding
from ridgeline.report import trace_tables
from ridgeline.report.markup import Markup, data_script, element, joined
from ridgeline.report.page_frame import framed, own_file
from ridgeline.report.sections import section, tiles
from ridgeline.report.trace_rank import DRAWN_RANKS, TracePageRank
from ridgeline.trace.flame import FlameNode
from ridgeline.trace.kernel_names import short_name
from ridgeline.trace.stragglers import stragglers
from ridgeline.trace.timeline import Timeline

_LONGEST_NAME = 120


def write_trace_report(path: Path, ranks: Sequence[TracePageRank]) -> int:
    """Write the page; returns its size in bytes."""
    page = trace_page(ranks).encode()
    write_atomically(path, page)
    return len(page)


def trace_page(ranks: Sequence[TracePageRank]) -> str:
    """The page of one trace, or of the ranks of a job."""
    facts = [fact for rank in ranks for fact in rank.facts]
    findings = verdict_of(facts)
    collectives = [rank.facts[0].collectives for rank in ranks if rank.facts]
    together = stragglers(collectives) if len(collectives) > 1 else None
    drawn = ranks[:DRAWN_RANKS]
    body = [
        _header(ranks, findings),
        section("What bounds it", "First the cause that bounds the run.", _verdict(findings)),
        *_timeline_section(ranks, drawn),
        *trace_tables.every_section(ranks, together),
        *_flame_section(ranks, drawn),
    ]
    data = {
        "timelines": [_timeline_data(rank.timeline) for rank in drawn],
        "flames": [_flame_data(rank.flame) for rank in drawn],
        "labels": [label(rank, place) for place, rank in enumerate(drawn)],
    }
    name = Path(ranks[0].file).name + (f" and {len(ranks) - 1} more" if len(ranks) > 1 else "")
    return _page(f"{name}: {findings[0].cause if findings else 'nothing stands out'}", body, data)


def label(rank: TracePageRank, place: int) -> str:
    """What a rank is called on the page."""
    return f"rank {place if rank.rank is None else rank.rank}"


def _header(ranks: Sequence[TracePageRank], findings: Sequence[TraceFinding]) -> Markup:
    facts = [fact for rank in ranks for fact in rank.facts if fact.window_us > 0]
    first = ranks[0]
    device = next((fact.summary.device_name for fact in facts if fact.summary.device_name), None)
    warnings = list(
        dict.fromkeys(
            warning for rank in ranks for fact in rank.facts for warning in fact.summary.warnings
        )
    )
    shown: list[tuple[str, str]] = [("traces", str(len(ranks)))]
    if facts:
        whole = sum(fact.window_us for fact in facts)

        def share(key: str) -> str:
            return quantity.percent(sum(getattr(f.summary, key) for f in facts) / whole)

        shown += [
            ("window", quantity.seconds(whole / len(facts) * 1e-6)),
            ("GPU busy", share("busy_us")),
            ("compute", share("compute_us")),
            ("communication exposed", share("communication_exposed_us")),
            ("waiting for the host", share("host_wait_us")),
            ("GPU events", quantity.count(sum(f.summary.gpu_events for f in facts))),
        ]
    title = findings[0].cause.replace("-", " ").capitalize() if findings else "Nothing stands out"
    sure = f"confidence {findings[0].confidence:.2f}" if findings else ""
    return element(
        "header",
        element("p", element("b", Path(first.file).name),
                f" on {device}" if device else "", class_="origin"),
        element("h1", title, element("span", sure, class_="chip") if sure else ""),
        element("p", findings[0].summary if findings else "", class_="sub"),
        tiles(shown),
        *(element("p", warning, class_="note") for warning in warnings[:8]),
    )  # fmt: skip


def _verdict(findings: Sequence[TraceFinding]) -> Markup:
    if not findings:
        return element("p", "No cause takes a share of the window worth a word.")
    rows = []
    for finding in findings:
        evidence = ", ".join(f"{key} {value}" for key, value in finding.evidence.items())
        rows.append(
            element(
                "div",
                element("h3", finding.cause,
                        element("span", quantity.percent(finding.share), class_="share")),
                element("p", finding.summary),
                element("p", finding.cure, class_="cure"),
                element("small", f"Worth up to {quantity.seconds(finding.worth_us * 1e-6)}; "
                        f"confidence {finding.confidence:.2f}. {evidence}"),
                element("small", "; ".join(finding.where[:4])) if finding.where else "",
                class_="finding",
            )
        )  # fmt: skip
    return joined(rows)


def _timeline_section(
    ranks: Sequence[TracePageRank], drawn: Sequence[TracePageRank]
) -> list[Markup]:
    if not any(rank.timeline.tracks for rank in drawn):
        return []
    events = sum(rank.timeline.events for rank in drawn)
    merged = sum(rank.timeline.merged for rank in drawn)
    note = "Scroll to zoom, drag to move, click a slice to read it, double-click for all of it."
    if merged:
        note += (
            f" {quantity.count(merged)} of {quantity.count(events)} events are too short to draw "
            "and are joined with their neighbours."
        )
    if len(ranks) > len(drawn):
        note += f" Drawn: the first {len(drawn)} of {len(ranks)} ranks."
    parts = [
        element("div",
                element("canvas", class_="timeline", data_rank=str(place), tabindex="0"),
                element("p", "", class_="told"), class_="drawing")
        for place in range(len(drawn))
    ]  # fmt: skip
    return [section("Timeline", note, *parts)]


def _flame_section(ranks: Sequence[TracePageRank], drawn: Sequence[TracePageRank]) -> list[Markup]:
    if not any(rank.flame for rank in drawn):
        return []
    note = (
        "Width is host time, or GPU time of what was launched there. Click to zoom in, on the top "
        "bar to zoom out; branches below 0.2 % are left out."
    )
    if len(ranks) > len(drawn):
        note += f" Drawn: the first {len(drawn)} of {len(ranks)} ranks."
    switch = element("p", element("button", "Host time", class_="by", data_by="1"),
                     element("button", "GPU time", class_="by", data_by="2"))  # fmt: skip
    parts = [
        element("div", element("canvas", class_="flame", data_rank=str(place)),
                element("p", "", class_="told"), class_="drawing")
        for place in range(len(drawn))
    ]  # fmt: skip
    return [section("Flame graph", note, switch, *parts)]


def _timeline_data(line: Timeline) -> dict[str, object]:
    kinds: dict[str, int] = {}
    tracks = []
    for track in line.tracks:
        flat: list[float | int] = []
        for start, duration, level, kind, name in track.slices:
            flat += [start, duration, level, kinds.setdefault(kind, len(kinds)), name]
        tracks.append({"name": track.name, "levels": track.levels, "slices": flat})
    return {
        "span": round(line.end_us - line.start_us, 2), "tracks": tracks, "names": line.names,
        "kinds": list(kinds), "busy": line.busy_percent,
    }  # fmt: skip


def _flame_data(roots: Sequence[FlameNode]) -> list[object]:
    return [
        [short_name(node.name)[:_LONGEST_NAME], round(node.host_us, 1), round(node.gpu_us, 1),
         node.calls, _flame_data(node.children)]
        for node in roots
    ]  # fmt: skip


def _page(title: str, body: Sequence[Markup], data: dict[str, object]) -> str:
    script = Markup(f"<script>{own_file('trace_page.js')}</script>")
    styles = ("page.css", "trace_page.css")
    return framed(title, styles, body, [data_script("drawings", data), script])
