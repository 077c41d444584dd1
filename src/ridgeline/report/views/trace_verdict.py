"""What bounds a run, in sentences: the findings of a trace with their evidence.

The sentence of each figure stands in `trace_evidence.toml`. A rule may give a figure that has none
there yet: it is then said with the words of its key.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Sequence
from fnmatch import fnmatchcase
from functools import cache
from importlib.resources import files

from ridgeline import quantity
from ridgeline.records.finding import TraceFinding
from ridgeline.report import document as doc
from ridgeline.trace.kernel_names import short_name

_PLACE = re.compile(r"\{(|us|share|bytes)\}")


def verdict_blocks(findings: Sequence[TraceFinding]) -> list[doc.Block]:
    """The causes, the first one bounds the run."""
    if not findings:
        return [
            doc.Paragraph("Nothing stands out: no cause takes a share of the window worth a word.")
        ]
    return [doc.AdviceList([_finding(one) for one in findings])]


def _finding(one: TraceFinding) -> doc.Advice:
    worth = quantity.microseconds(one.worth_us)
    return doc.Advice(
        worth=quantity.percent(one.share),
        sureness=f"confidence {one.confidence:.2f}",
        title=f"{one.cause}: {one.summary}",
        cure=f"→ {one.cure}",
        places=[short_name(place) for place in one.where],
        evidence=[evidence_sentence(key, value) for key, value in one.evidence.items()],
        note=f"{quantity.percent(one.share)} of the window, worth up to {worth}",
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
