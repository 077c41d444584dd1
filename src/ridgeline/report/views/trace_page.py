"""The page of `ridgeline trace report`: verdict, timeline, flame graph, a table for every question.

What is drawn is limited (`trace/pictures/timeline.py`, `diagnose/trace_answers.py`), and the page
says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ridgeline import quantity
from ridgeline.report import document as doc
from ridgeline.report.views import trace as views
from ridgeline.report.views.trace import on_page, rows_of
from ridgeline.report.views.trace_across import stragglers_line, stragglers_table
from ridgeline.report.views.trace_verdict import verdict_blocks
from ridgeline.trace.kernel_names import short_name

if TYPE_CHECKING:
    from ridgeline.diagnose.trace_answers import RankAnswers, TraceAnswers
    from ridgeline.trace.pictures.flame import FlameNode
    from ridgeline.trace.pictures.timeline import TraceTimeline

RANKS_IN_DETAIL = 8
"""Ranks whose own rows are listed where every rank has many."""
_LONGEST_NAME = 120
_MOST_WARNINGS = 8
_MOST_PARTS = 20
RANKS = (
    doc.Column("device"),
    *(
        doc.Column(field)
        for field in (
            "window_us", "busy_us", "idle_us", "compute_us", "communication_us",
            "communication_exposed_us", "copy_us", "host_wait_us", "dependency_wait_us",
            "kernel_wait_us", "unknown_wait_us", "gpu_events", "steps", "step_us",
        )
    ),
)  # fmt: skip
LAUNCHES = tuple(
    on_page(field)
    for field in (
        "gpu_events", "launched", "launch_calls", "launch_call_us", "host_wait_share",
        "launch_bound", "kernels_under_5us_share", "graph_launches", "graph_time_share",
    )
)  # fmt: skip
STEPS = (
    doc.Column("number"),
    doc.Column("length_us"),
    doc.Column("whole"),
    doc.Column("gpu_busy_us"),
    doc.Column("gpu_idle_us"),
    doc.Column("communication_exposed_us"),
    doc.Column("outlier"),
)


def trace_page_document(found: TraceAnswers) -> doc.ReportDocument:
    """The page of one trace, or of the ranks of a job."""
    ranks, verdict = found.ranks, found.verdict
    first = Path(ranks[0].file).name + (f" and {len(ranks) - 1} more" if len(ranks) > 1 else "")
    note = "First the cause that bounds the run."
    shown: list[doc.Block] = [
        *_head(found),
        doc.Chapter("What bounds it", verdict_blocks(verdict), note),
        *_timelines(ranks, found.drawn),
        *_questions(found),
        *_flames(ranks, found.drawn),
    ]
    cause = verdict[0].cause if verdict else "nothing stands out"
    return doc.ReportDocument(f"{first}: {cause}", shown)


def _head(found: TraceAnswers) -> list[doc.Block]:
    facts = [fact for rank in found.ranks for fact in rank.facts if fact.window_us > 0]
    summaries = [fact.summary for rank in found.ranks for fact in rank.facts]
    device = next((fact.summary.device_name for fact in facts if fact.summary.device_name), None)
    pairs: list[tuple[str, doc.Words]] = [("traces", str(len(found.ranks)))]
    if facts:
        whole = sum(fact.window_us for fact in facts)

        def share(key: str) -> str:
            return quantity.percent(sum(getattr(one.summary, key) for one in facts) / whole)

        pairs += [
            ("window", quantity.microseconds(whole / len(facts))),
            ("GPU busy", share("busy_us")),
            ("compute", share("compute_us")),
            ("communication exposed", share("communication_exposed_us")),
            ("waiting for the host", share("host_wait_us")),
            ("GPU events", quantity.count(sum(one.summary.gpu_events for one in facts))),
        ]
    worst = found.verdict[0] if found.verdict else None
    lead = doc.Lead(
        title=worst.cause.replace("-", " ").capitalize() if worst else "Nothing stands out",
        subtitle=worst.summary if worst else "",
        origin=(
            doc.Phrase(Path(found.ranks[0].file).name, "strong"),
            f" on {device}" if device else "",
        ),
        chip=doc.Phrase(f"confidence {worst.confidence:.2f}") if worst else None,
    )
    warnings = dict.fromkeys(warning for one in summaries for warning in one.warnings)
    return [lead, doc.Values(pairs), doc.Lines(list(warnings)[:_MOST_WARNINGS], "warning")]


def _label(rank: RankAnswers, place: int) -> str:
    return str(place if rank.rank is None else rank.rank)


def _questions(found: TraceAnswers) -> list[doc.Block]:
    """A section per question that the traces can answer."""
    every = [(_label(rank, place), rank) for place, rank in enumerate(found.ranks)]
    detailed = every[:RANKS_IN_DETAIL]
    kernels = [(name, one) for name, rank in detailed for one in rank.kernels]
    devices = [(name, one) for name, rank in detailed for one in rank.memory.devices]
    growing = [(name, one) for name, one in devices if one.growth.verdict == "grows"]
    grown = " ".join(
        f"Rank {name}, {one.device}: memory {one.growth.sentence}." for name, one in growing
    )
    sections = [
        _section("Ranks", RANKS, ((name, one.summary) for name, rank in every
                                  for one in rank.facts), "Where the window of each GPU went."),
        _stragglers(found),
        _section("Critical path", views.PARTS,
                 ((name, part) for name, rank in detailed
                  for part in rank.path.names[:_MOST_PARTS]),
                 "The chain of launches, kernels and waits that made each rank's window as long as"
                 " it was."),
        _section("Idle gaps", views.GAPS,
                 ((name, gap) for name, rank in detailed for one in rank.idle for gap in one.gaps),
                 "The largest gaps of the GPU, with what the launching thread did."),
        _section("Kernels", views.KERNELS,
                 ((name, use) for name, one in kernels for use in one.kernels)),
        _section("Roofline", views.ROOFLINE,
                 ((name, use) for name, one in kernels for use in one.kernels
                  if use.roofline is not None), views.ROOFLINE_NOTE),
        _section("Classes of kernels", views.CLASSES,
                 ((name, use) for name, one in kernels for use in one.classes)),
        _section("Exposed communication and copies", views.EXPOSED,
                 ((name, use) for name, rank in detailed for one in rank.overlap
                  for use in one.kernels), "What runs with no compute beside it."),
        _section("Collectives", views.COLLECTIVES,
                 ((name, use) for name, rank in detailed for one in rank.communication
                  for use in one.collectives),
                 "On one rank the time holds waiting: bandwidth is at least this."),
        _section("Launches", LAUNCHES,
                 ((name, one) for name, rank in detailed for one in rank.launches)),
        _section("Synchronisation", views.SYNC,
                 ((name, point) for name, rank in detailed for point in rank.sync.points),
                 "Waits of the host for the GPU."),
        _section("Steps", STEPS,
                 ((name, step) for name, rank in detailed for step in rank.steps.steps)),
        _section("Operators", views.OPERATORS,
                 ((name, one) for name, rank in detailed for one in rank.operators.operators)),
        _section("Memory", views.HOLDERS,
                 ((name, one) for name, device in devices for one in device.holders),
                 "Allocated at the peak."),
        _section("Memory from step to step", views.LEVELS,
                 ((name, one) for name, device in growing for one in device.growth.steps), grown),
        _section("Memory that is kept", views.HOLDERS,
                 ((name, one) for name, device in devices for one in device.growth.kept),
                 "Allocated in a step and never freed."),
    ]  # fmt: skip
    return [section for section in sections if section is not None]


def _section(
    title: str, columns: Sequence[doc.Column], records: Iterable[tuple[str, Any]], note: str = ""
) -> doc.Chapter | None:
    table = rows_of(columns, records, sortable=True)
    return doc.Chapter(title, [table], note) if table.rows else None


def _stragglers(found: TraceAnswers) -> doc.Chapter | None:
    together = found.stragglers
    if together is None or not together.matched:
        return None
    note = " ".join([stragglers_line(together), *together.warnings])
    table = stragglers_table(together, len(together.ranks), sortable=True)
    return doc.Chapter("Stragglers", [table], note)


# -- pictures --------------------------------------------------------------------------------------


def _timelines(ranks: Sequence[RankAnswers], drawn: Sequence[RankAnswers]) -> list[doc.Block]:
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
    data = [_timeline(rank.timeline) for rank in drawn]
    canvas = doc.Canvas("timeline", data, _labels(drawn))
    return [doc.Chapter("Timeline", [canvas], note + _left_out(ranks, drawn))]


def _flames(ranks: Sequence[RankAnswers], drawn: Sequence[RankAnswers]) -> list[doc.Block]:
    if not any(rank.flame for rank in drawn):
        return []
    note = (
        "Width is host time, or GPU time of what was launched there. Click to zoom in, on the top "
        "bar to zoom out; branches below 0.2 % are left out."
    )
    canvas = doc.Canvas("flame", [_flame(rank.flame) for rank in drawn], _labels(drawn))
    return [doc.Chapter("Flame graph", [canvas], note + _left_out(ranks, drawn))]


def _labels(drawn: Sequence[RankAnswers]) -> list[str]:
    return [f"rank {_label(rank, place)}" for place, rank in enumerate(drawn)]


def _left_out(ranks: Sequence[RankAnswers], drawn: Sequence[RankAnswers]) -> str:
    if len(ranks) == len(drawn):
        return ""
    return f" Drawn: the first {len(drawn)} of {len(ranks)} ranks."


def _timeline(line: TraceTimeline) -> dict[str, object]:
    kinds: dict[str, int] = {}
    tracks = []
    for track in line.tracks:
        flat: list[float | int] = []
        for start, duration, level, kind, called in track.slices:
            flat += [start, duration, level, kinds.setdefault(kind, len(kinds)), called]
        tracks.append({"name": track.name, "levels": track.levels, "slices": flat})
    return {
        "span": round(line.end_us - line.start_us, 2),
        "tracks": tracks,
        "names": line.names,
        "kinds": list(kinds),
        "busy": line.busy_percent,
    }


def _flame(roots: Sequence[FlameNode]) -> list[object]:
    return [
        [short_name(node.name)[:_LONGEST_NAME], round(node.host_us, 1), round(node.gpu_us, 1),
         node.calls, _flame(node.children)]
        for node in roots
    ]  # fmt: skip
