"""Answers of `ridgeline trace …` and `doctor --trace`, opened again: the same records and views.

Most answers are `{"ranks": […]}` whatever was asked; the keys of a rank's record say which question
it answers. `opened_traces.toml` has the questions.
"""

from __future__ import annotations

import importlib
import tomllib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

import msgspec

from ridgeline.errors import InputError
from ridgeline.records.finding import TraceFinding
from ridgeline.report.document import Lines, ReportDocument
from ridgeline.report.views.trace_across import tree_document
from ridgeline.report.views.trace_comparison import comparison_document
from ridgeline.report.views.trace_memory import snapshot_document
from ridgeline.report.views.trace_summary import summary_document, verdict_document
from ridgeline.trace.compare.comparison import TraceComparison
from ridgeline.trace.memory.snapshot import SnapshotMemory
from ridgeline.trace.pictures.flame import FlameNode
from ridgeline.trace.time.summary import RankSummary

TREE_ROWS = 200


class _Question(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One question of `ridgeline trace`."""

    records: list[str]
    """`module:name` of what may stand for a rank."""
    view: str
    """`module:name` of the function that shows the records of all ranks."""


@cache
def trace_questions() -> Mapping[str, _Question]:
    """Name of a question → how its answer is read and drawn."""
    text = files("ridgeline.studio").joinpath("opened_traces.toml").read_text(encoding="utf-8")
    return msgspec.convert(tomllib.loads(text), dict[str, _Question])


def answers_view(found: dict[str, Any]) -> ReportDocument:
    """The answer to the question that its ranks are of.

    Raises:
        InputError: They are of none.
    """
    ranks = found["ranks"]
    if not isinstance(ranks, list) or not ranks:
        raise InputError("no rank is in it, so there is nothing to show")
    first = ranks[0]
    if "verdict" in found:
        return summary_document(
            msgspec.convert(ranks, list[RankSummary]),
            msgspec.convert(found["verdict"], list[TraceFinding]),
        )
    if isinstance(first, list) and first and isinstance(first[0], str):
        return ReportDocument("Folded stacks", [Lines(msgspec.convert(first, list[str]))])
    if isinstance(first, list):
        return tree_document(msgspec.convert(first, list[FlameNode]), TREE_ROWS)
    if "job" in found:
        whole = found["job"] or first
        return comparison_document(msgspec.convert(whole, TraceComparison))
    for question in trace_questions().values():
        kinds = [_named(one) for one in question.records]
        if isinstance(first, dict) and any(_is_of(first, kind) for kind in kinds):
            records = [msgspec.convert(rank, _kind_of(rank, kinds)) for rank in ranks]
            document: ReportDocument = _named(question.view)(records)
            return document
    raise InputError("its ranks answer no question of ridgeline trace that is known here")


def snapshots_view(found: dict[str, Any]) -> ReportDocument:
    """The devices of the first memory snapshot."""
    return snapshot_document(
        msgspec.convert(found["snapshots"][0]["devices"], list[SnapshotMemory])
    )


def verdict_view(found: dict[str, Any]) -> ReportDocument:
    """What `doctor --trace` found."""
    return verdict_document(msgspec.convert(found["verdict"], list[TraceFinding]))


def _is_of(rank: dict[str, Any], kind: Any) -> bool:
    return set(rank) == {one.encode_name for one in msgspec.structs.fields(kind)}


def _kind_of(rank: dict[str, Any], kinds: list[Any]) -> Any:
    """The record among these that a rank has the keys of; the first where it has none's."""
    return next((kind for kind in kinds if _is_of(rank, kind)), kinds[0])


def _named(place: str) -> Any:
    module, _, name = place.partition(":")
    return getattr(importlib.import_module(module), name)
