"""`compare` in the terminal and as Markdown."""

from __future__ import annotations

import msgspec
from tests.report.drawn import drawn
from tests.report.records import step_samples

from ridgeline.measure.compare.comparison import Comparison, compare_runs
from ridgeline.measure.compare.history import HistoryChange, HistoryPoint, HistoryVerdict
from ridgeline.measure.compare.readers import Origin
from ridgeline.measure.compare.runs import Run
from ridgeline.report.markdown import draw_markdown
from ridgeline.report.views.compare import comparison_document, headline, reason


def a_comparison(factor: float, source: str = "b.json") -> Comparison:
    def run(name: str, median: float, seed: int) -> Run:
        return Run(
            source=name,
            record="profile",
            kind="training",
            samples=step_samples(median, seed=seed),
            phases={"forward": 0.4 * median, "backward": 0.6 * median, "data": 0.0},
            peak_memory_bytes=int(1e9 * median),
            origin=Origin(device="cpu"),
            world_size=1,
            steady=True,
        )

    return compare_runs(run("a.json", 0.2, 1), run(source, 0.2 * factor, 2))


def a_history() -> HistoryVerdict:
    point = HistoryPoint(line=23, source="c41f.json", date="2026-11-20", step_seconds=0.21)
    change = HistoryChange(kind="drift", at=point, from_seconds=0.2, to_seconds=0.22)
    return HistoryVerdict(
        file="h.jsonl",
        verdict="slower",
        entries=40,
        left_out=2,
        slowdown=1.1,
        first_bad=point,
        changes=[change],
        warnings=["2 of 42 entries are of another device"],
    )


def shown(comparison: Comparison, history: HistoryVerdict | None = None, width: int = 80) -> str:
    return drawn(comparison_document(comparison, history), width)


def test_the_factor_is_above_one_whichever_way_it_goes() -> None:
    assert headline(a_comparison(1.25)).startswith("1.25× slower [1.2")
    assert headline(a_comparison(0.8)).startswith("1.25× faster [1.2")
    assert headline(a_comparison(1.0)) == "no difference beyond noise and 2 %"


def test_the_reason_is_the_phase_that_grew() -> None:
    assert reason(a_comparison(1.25)) == "backward takes 30.0 ms more per step"
    assert reason(a_comparison(0.8)) is None


def test_the_view_fits_80_columns_and_holds_both_sides() -> None:
    text = shown(a_comparison(1.25), a_history())
    assert max(len(line) for line in text.splitlines()) <= 80
    for part in ("median step", "p95 step", "peak memory", "forward", "+30.0 ms"):
        assert part in text
    assert "data" not in text


def test_the_history_names_the_first_bad_entry() -> None:
    joined = " ".join(shown(a_comparison(1.0), a_history()).split())
    assert "1.10× slower than the best level since h.jsonl:23 (c41f.json, 2026-11-20)" in joined
    assert "drift at h.jsonl:23" in joined
    assert "warning: 2 of 42 entries" in joined


def test_markdown_holds_tables_and_warnings() -> None:
    text = draw_markdown(comparison_document(a_comparison(1.25), a_history()))
    assert text.startswith("### Ridgeline: 1.25× slower")
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert len({line.count("|") for line in rows}) == 1
    assert "> **Warning:** 2 of 42 entries" in text


def test_a_file_name_cannot_break_the_markdown() -> None:
    text = draw_markdown(
        comparison_document(a_comparison(1.0, source="a|b<img src=x>`*@team\n# boo.json"), None)
    )
    assert "<img" not in text
    assert "\n# boo" not in text
    assert r"a\|b" in text
    assert r"\@team" in text


def test_an_unbounded_interval_is_drawn_as_one() -> None:
    comparison = a_comparison(1.0)
    loose = msgspec.structs.replace(comparison.slowdown, ci_low=None, ci_high=None)
    text = shown(msgspec.structs.replace(comparison, slowdown=loose))
    assert "[–, –]" in text
