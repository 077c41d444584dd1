"""What `ridgeline trace summary` and `doctor --trace` show: one row per GPU, and what bounds it.

What bounds a run is said in sentences, with their evidence. The sentence of each figure stands in
`trace_evidence.toml`. A rule may give a figure that has none there yet: it is then said with the
words of its key.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING

from ridgeline import quantity
from ridgeline.records.finding import TraceFinding
from ridgeline.report import document as doc
from ridgeline.report.views.trace import share_of, who

if TYPE_CHECKING:
    from ridgeline.trace.time.summary import RankSummary
import re
import tomllib
from fnmatch import fnmatchcase
from functools import cache
from importlib.resources import files

from ridgeline.trace.kernel_names import short_name

_WORTH_A_COLUMN = 0.001
_OF_THE_DEVICE = {
    "depend": "dependency",
    "stall": "stall",
    "gaps": "launch_gap",
    "unknown": "unknown",
}
"""Column → part of the idle time that is not the host's."""
WINDOW_NAMES = {
    "trace": "the GPU's work",
    "steps": "whole profiler steps",
    "span": "the work of host and GPU together",
}


def verdict_document(findings: Sequence[TraceFinding]) -> doc.ReportDocument:
    """What bounds the run, then everything else that was found."""
    return doc.ReportDocument("Verdict", verdict_blocks(findings))


def summary_document(
    ranks: Sequence[RankSummary], verdict: Sequence[TraceFinding]
) -> doc.ReportDocument:
    """One row per GPU, then the causes, then what the reader had to say about the files."""
    fields = {
        "busy": "busy_us",
        "compute": "compute_us",
        "comm": "communication_us",
        "exposed": "communication_exposed_us",
        "copies": "copy_us",
        "idle": "idle_us",
    }
    takes: dict[str, Callable[[RankSummary], float]] = {
        **{title: attrgetter(field) for title, field in fields.items()},
        "host": _idle_of_host,
        **{title: partial(_idle_in, part=part) for title, part in _OF_THE_DEVICE.items()},
    }
    working = [rank for rank in ranks if rank.gpu_events]
    shown = {
        title: take
        for title, take in takes.items()
        if title in ("busy", "idle")
        or any(take(rank) >= _WORTH_A_COLUMN * rank.window_us for rank in working)
    }
    rows = [
        doc.TableRow((who(rank), rank.window_us,
             *(share_of(take(rank), rank.window_us) for take in shown.values())))
        for rank in working
    ]  # fmt: skip
    whole = sum(rank.window_us for rank in working)
    if len(working) > 1:
        totals = (sum(map(take, working)) for take in shown.values())
        mean = ("mean", whole / len(working), *(share_of(total, whole) for total in totals))
        rows.append(doc.TableRow(mean, "strong"))
    blocks: list[doc.Block] = []
    if working:
        columns = (
            doc.name("rank"),
            doc.Column("window_us"),
            *(doc.Column("share", title) for title in shown),
        )
        blocks.append(doc.DataTable(columns, rows))
        said = "shares of it. host, depend, stall, gaps, unknown: whose the idle time is"
        blocks.append(doc.Paragraph(f"Window: {WINDOW_NAMES[ranks[0].window]}; {said}", "dim"))
    used = [rank.flops_utilization for rank in working if rank.flops_utilization is not None]
    if used:
        share = quantity.percent(sum(used) / len(used))
        blocks.append(
            doc.Paragraph(f"Matrix products, convolutions, attention: {share} of the peak FLOP/s")
        )
    if verdict:
        blocks.append(doc.Chapter(f"What bounds it{_judged_on(verdict[0], ranks[0].window)}",
                                  verdict_blocks(verdict)))  # fmt: skip
    warned = dict.fromkeys(
        f"{os.path.basename(rank.file)}: {warning}" for rank in ranks for warning in rank.warnings
    )
    return doc.ReportDocument("Trace", [*blocks, doc.Lines(list(warned), "warning")])


def _idle_in(rank: RankSummary, part: str) -> float:
    return rank.idle_by[part]


def _idle_of_host(rank: RankSummary) -> float:
    return sum(us for part, us in rank.idle_by.items() if part not in _OF_THE_DEVICE.values())


def _judged_on(finding: TraceFinding, window: str) -> str:
    """Say what the verdict is about where that is not the window of the table."""
    judged, length = finding.evidence.get("window"), finding.evidence.get("window_us")
    if not isinstance(judged, str) or judged == window or not isinstance(length, float):
        return ""
    return f", judged on {WINDOW_NAMES[judged]} ({quantity.microseconds(length)})"


_PLACE = re.compile(r"\{(|us|share|bytes)\}")


def verdict_blocks(findings: Sequence[TraceFinding]) -> list[doc.Block]:
    """The causes, the first one bounds the run."""
    if not findings:
        return [
            doc.Paragraph("Nothing stands out: no cause takes a share of the window worth a word.")
        ]
    return [doc.AdviceList([_finding(one) for one in findings])]


def _finding(one: TraceFinding) -> doc.Advice:
    worth = f", worth up to {quantity.microseconds(one.worth_us)}" if one.worth_us > 0 else ""
    return doc.Advice(
        worth=quantity.percent(one.share),
        sureness=f"confidence {one.confidence:.2f}",
        title=f"{one.cause}: {one.summary}",
        cure=f"→ {one.cure}",
        places=[short_name(place) for place in one.where],
        evidence=[evidence_sentence(key, value) for key, value in one.evidence.items()],
        note=f"{quantity.percent(one.share)} of the window{worth}",
    )


def evidence_sentence(key: str, value: float | str) -> str:
    """A figure of a finding's evidence, in a sentence.

    >>> evidence_sentence("host_wait_us", 1234.5)
    'The GPU waits 1.23 ms for the host.'
    >>> evidence_sentence("in_profiler_us", 12.0), evidence_sentence("lost_packets", 3)
    ('The host is in profiler for 12.0 µs.', 'Lost packets: 3.')
    """
    for pattern, sentence in _sentences().items():
        if fnmatchcase(key, pattern):
            front, _, back = pattern.partition("*")
            name = key[len(front) : len(key) - len(back)].replace("_", " ")
            parts = _PLACE.split(sentence.replace("{name}", name), maxsplit=1)
            return parts[0] + _figure(parts[1] or key, value) + parts[2]
    words = quantity.without_unit(key)
    return f"{words[:1].upper()}{words[1:]}: {_figure(key, value)}."


def _figure(unit: str, value: float | str) -> str:
    return value if isinstance(value, str) else quantity.shown(unit, value)


@cache
def _sentences() -> dict[str, str]:
    text = files("ridgeline.report.views").joinpath("trace_evidence.toml").read_text("utf-8")
    return {key: str(sentence) for key, sentence in tomllib.loads(text).items()}
