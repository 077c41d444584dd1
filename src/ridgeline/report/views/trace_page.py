"""The page of `ridgeline trace report`: verdict, timeline, flame graph, a table for every question.

What is drawn is limited (`trace/pictures/timeline.py`, `diagnose/trace_answers.py`), and the page
says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise, zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ridgeline import quantity
from ridgeline.report import document as doc
from ridgeline.report.views import trace as views
from ridgeline.report.views.quartiles import FEW, spread_blocks
from ridgeline.report.views.trace import on_page, rows_of
from ridgeline.report.views.trace_across import stragglers_line, stragglers_table
from ridgeline.report.views.trace_summary import verdict_blocks
from ridgeline.trace.kernel_names import short_name

if TYPE_CHECKING:
    from ridgeline.diagnose.trace_answers import RankAnswers, RankOutline, TraceAnswers
    from ridgeline.trace.columns import Floats
    from ridgeline.trace.pictures.flame import FlameNode
    from ridgeline.trace.pictures.timeline import TraceTimeline
    from ridgeline.trace.pictures.timeline_tracks import Track

_LONGEST_NAME = 120
_MOST_WARNINGS = 8
_MOST_PARTS = 20
RANKS = (
    doc.words("device"),
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
        "queue_empty", "kernels_under_5us_share", "graph_launches", "graph_time_share",
    )
)  # fmt: skip
STEPS = (
    doc.Column("length_us"),
    doc.Column("whole"),
    doc.Column("gpu_busy_us"),
    doc.Column("gpu_idle_us"),
    doc.Column("communication_exposed_us"),
    doc.Column("outlier"),
)


WAITS = (
    doc.Column("skew_wait_us", "waits for others"),
    doc.Column("caused_wait_us", "makes others wait"),
    doc.Column("last_arrivals", "last"),
    doc.Column("communication_us", "communication"),
)


def trace_page_document(found: TraceAnswers) -> doc.ReportDocument:
    """The page of one trace, or of the ranks of a job."""
    ranks, verdict = found.ranks, found.verdict
    drawn = [(_shown_as(found, place), found.detailed[place]) for place in found.drawn]
    first = Path(ranks[0].file).name + (f" and {len(ranks) - 1} more" if len(ranks) > 1 else "")
    note = "First the cause that bounds the run."
    shown: list[doc.Block] = [
        *_head(found),
        doc.Chapter("What bounds it", verdict_blocks(verdict), note),
        *_timelines(drawn, len(ranks)),
        *_questions(found),
        *_flames(drawn, len(ranks)),
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


def _label(rank: RankOutline | RankAnswers, place: int) -> str:
    return str(place if rank.rank is None else rank.rank)


def _shown_as(found: TraceAnswers, place: int) -> str:
    """What the picture of a rank is called, and why it is this one."""
    why = found.drawn[place]
    return f"rank {_label(found.ranks[place], place)}" + (f" ({why})" if why else "")


def _questions(found: TraceAnswers) -> list[doc.Block]:
    """A section per question that the traces can answer."""
    facts = [(_label(rank, place), one) for place, rank in enumerate(found.ranks)
             for one in rank.facts]  # fmt: skip
    detailed = [(_label(rank, place), rank) for place, rank in found.detailed.items()]
    steps = [(f"{name}: {step.number}" if len(detailed) > 1 else str(step.number), step)
             for name, rank in detailed for step in rank.steps.steps]  # fmt: skip
    kernels = [(name, one) for name, rank in detailed for one in rank.kernels]
    devices = [(name, one) for name, rank in detailed for one in rank.memory.devices]
    growing = [(name, one) for name, one in devices if one.growth.verdict == "grows"]
    grown = " ".join(
        f"Rank {name}, {one.device}: memory {one.growth.sentence}." for name, one in growing
    )
    sections = [
        _spread("Ranks", RANKS, [(name, one.summary) for name, one in facts], "rank",
                "Where the window of each GPU went."),
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
        _spread("Launches", LAUNCHES, [(name, one.launches) for name, one in facts
                                       if one.launches is not None], "rank"),
        _section("Synchronisation", views.SYNC,
                 ((name, point) for name, rank in detailed for point in rank.sync.points),
                 "Waits of the host for the GPU."),
        _spread("Steps", STEPS, steps, "step"),
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
    """A table; of several ranks the first row of each, then the second of each, and so on."""
    ranks: dict[str, list[tuple[str, Any]]] = {}
    for name, record in records:
        ranks.setdefault(name, []).append((name, record))
    in_turn = [row for rows in zip_longest(*ranks.values()) for row in rows if row is not None]
    table = rows_of(columns, in_turn, sortable=True)
    return doc.Chapter(title, [table], note) if table.rows else None


def _spread(
    title: str,
    columns: Sequence[doc.Column],
    records: Sequence[tuple[str, Any]],
    noun: str,
    note: str = "",
) -> doc.Chapter | None:
    """A row per record where they are few, their quartiles and outliers where they are many."""
    return doc.Chapter(title, spread_blocks(columns, records, noun), note) if records else None


def _stragglers(found: TraceAnswers) -> doc.Chapter | None:
    together = found.stragglers
    if together is None or not together.matched:
        return None
    note = " ".join([stragglers_line(together), *together.warnings])
    if len(together.ranks) > FEW:
        records = [(str(one.rank), one) for one in together.ranks]
        return doc.Chapter("Stragglers", spread_blocks(WAITS, records, "rank"), note)
    table = stragglers_table(together, len(together.ranks), sortable=True)
    return doc.Chapter("Stragglers", [table], note)


# -- pictures --------------------------------------------------------------------------------------


def _timelines(drawn: Sequence[tuple[str, RankAnswers]], ranks: int) -> list[doc.Block]:
    lines = [(name, rank.timeline) for name, rank in drawn]
    if not any(line.tracks for _, line in lines):
        return []
    events = sum(line.events for _, line in lines)
    merged = sum(line.merged for _, line in lines)
    note = (
        "Scroll or pinch to zoom, drag to move, tap a slice to read it; with the keyboard: arrows,"
        " + and −, 0 for all of it."
    )
    if merged:
        note += (
            f" {quantity.count(merged)} of {quantity.count(events)} events are joined with their"
            f" neighbours or deep inside others. Drawn event by event: {_in_full(lines)}."
        )
    data = [_timeline(line) for _, line in lines]
    canvas = doc.Canvas("timeline", data, [name for name, _ in lines])
    return [doc.Chapter("Timeline", [canvas], note + _left_out(len(drawn), ranks))]


def _in_full(lines: Sequence[tuple[str, TraceTimeline]]) -> str:
    """The stretches that are drawn event by event, each named once."""
    stretches: dict[str, list[str]] = {}
    for name, line in lines:
        if line.merged and line.detail is not None:
            stretches.setdefault(line.detail.name, []).append(name)
    several = len(lines) > 1
    return "; ".join(
        f"{stretch} ({', '.join(names)})" if several else stretch
        for stretch, names in stretches.items()
    )


def _flames(drawn: Sequence[tuple[str, RankAnswers]], ranks: int) -> list[doc.Block]:
    if not any(rank.flame for _, rank in drawn):
        return []
    note = (
        "Width is host time, or GPU time of what was launched there. Click to zoom in, on the top "
        "bar to zoom out; branches below 0.2 % are left out."
    )
    data = [_flame(rank.flame) for _, rank in drawn]
    canvas = doc.Canvas("flame", data, [name for name, _ in drawn])
    return [doc.Chapter("Flame graph", [canvas], note + _left_out(len(drawn), ranks))]


def _left_out(drawn: int, ranks: int) -> str:
    return "" if drawn == ranks else f" Drawn: {drawn} of {ranks} ranks."


_TICK_US = 0.01
"""Times travel as whole hundredths of a microsecond."""


def _timeline(line: TraceTimeline) -> dict[str, object]:
    detail = line.detail
    stretch = None
    if detail is not None:
        stretch = {
            "from": round(detail.start_us - line.start_us, 2),
            "to": round(detail.end_us - line.start_us, 2),
            "name": detail.name,
            "step": detail.is_step,
        }
    return {
        "span": round(line.end_us - line.start_us, 2),
        "tracks": [_track(track, line.start_us) for track in line.tracks],
        "names": line.names,
        "kinds": line.kinds,
        "detail": stretch,
        "joined": line.merged > 0,
        "busy": line.busy_percent,
    }


def _track(track: Track, origin_us: float) -> dict[str, object]:
    """The columns of a track; starts as differences, which are short."""
    starts = _ticks(track.start_us - origin_us)
    return {
        "name": track.name,
        "role": track.role,
        "levels": track.levels,
        "joined": track.joined,
        "starts": [one - before for before, one in pairwise([0, *starts])],
        "lengths": _ticks(track.duration_us),
        "level": track.level.tolist() if track.levels > 1 else None,
        "kind": track.kind.tolist(),
        "label": track.label.tolist(),
        "number": track.correlation.tolist(),
        "operator": track.operator.tolist() if track.role == "gpu" else None,
        "critical": track.critical.tolist(),
    }


def _ticks(times_us: Floats) -> list[int]:
    found: list[int] = (times_us / _TICK_US).round().astype("int64").tolist()
    return found


def _flame(roots: Sequence[FlameNode]) -> list[object]:
    return [
        [short_name(node.name)[:_LONGEST_NAME], round(node.host_us, 1), round(node.gpu_us, 1),
         node.calls, _flame(node.children)]
        for node in roots
    ]  # fmt: skip
