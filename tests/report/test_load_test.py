"""What a load test shows."""

from __future__ import annotations

from tests.report.drawn import drawn

from ridgeline.records.load_test import (
    ClientCheck,
    CurvePoint,
    Lengths,
    LoadTest,
    Percentiles,
    Requests,
    Slo,
    TimelinePoint,
)
from ridgeline.report.page import draw_page
from ridgeline.report.views.loadtest import curve_figure, load_test_document

CLIENT = ClientCheck(
    send_lag_p50=0.001, send_lag_p99=0.002, send_lag_max=0.003, timer_lag_p99=0.001,
    cpu_share=0.2, max_send_lag_seconds=0.01,
)  # fmt: skip
LATENCY = Percentiles.of([0.1, 0.2, 0.3])


def point(rate: float, saturated: bool) -> CurvePoint:
    return CurvePoint(
        offered_per_second=rate, finished_per_second=rate, output_tokens_per_second=rate * 10,
        goodput=rate, in_flight=2.0, saturated=saturated, why="it fails" if saturated else "",
        ttft_p50_seconds=0.1, ttft_p99_seconds=0.2, tpot_p50_seconds=0.01,
        tpot_p99_seconds=0.02, e2e_p50_seconds=1.0, e2e_p99_seconds=2.0, client=CLIENT,
    )  # fmt: skip


def found_by(**changed: object) -> LoadTest:
    slices = tuple(
        TimelinePoint(
            at_seconds=float(at), seconds=1.0, sent_per_second=2.0, finished_per_second=2.0,
            failed_per_second=0.0, output_tokens_per_second=20.0, in_flight=1.0,
            ttft_p50_seconds=0.1, ttft_p99_seconds=None,
        )
        for at in range(5)
    )  # fmt: skip
    fields = {
        "url": "http://host/v1", "model": "<b>m</b>", "arrivals": "constant", "seed": 1,
        "interrupted": False, "window_seconds": (1.0, 4.0),
        "requests": Requests(sent=10, ok=9, failed=1, failures={"status 503": 1}),
        "lengths": Lengths(input_tokens=5.0, output_tokens=5.0, cached_share=0.0),
        "ttft_seconds": LATENCY, "ttft_from_sent_seconds": LATENCY, "tpot_seconds": LATENCY,
        "itl_seconds": LATENCY, "stall_seconds": LATENCY, "e2e_seconds": LATENCY,
        "requests_per_second": 2.0, "output_tokens_per_second": 20.0,
        "total_tokens_per_second": 40.0, "in_flight": 1.5, "goodput": 2.0,
        "slo": Slo(ttft_seconds=1.0), "goodput_share": 1.0, "client": CLIENT, "timeline": slices,
        "definitions": {"ttft_seconds": "time to first token"},
    }  # fmt: skip
    return LoadTest(**fields | changed)


def _page(found: LoadTest) -> str:
    return draw_page(load_test_document(found))


def shown(found: LoadTest) -> str:
    return drawn(load_test_document(found), 120)


def test_the_terminal_shows_latencies_failures_definitions_and_itself() -> None:
    text = shown(found_by())
    assert "p99.9" in text
    assert "1 × status 503" in text
    assert "time to first token" in text
    assert "send lag p99 2.00 ms" in text
    assert "TTFT ≤ 1.00 s" in text


def test_missing_token_figures_are_dashes() -> None:
    text = shown(
        found_by(tpot_seconds=None, output_tokens_per_second=None, total_tokens_per_second=None)
    )
    assert "–" in text
    assert "output tokens/s" not in text


def test_the_page_draws_curve_and_timeline_and_escapes_names() -> None:
    found = found_by(curve=(point(1.0, False), point(2.0, True)), max_rate=1.0)
    page = _page(found)
    assert 'id="plot-curve"' in page
    assert 'id="plot-ttft"' in page
    assert "<b>m</b>" not in page
    figure = curve_figure(found)
    assert figure["data"][0]["marker"]["symbol"] == ["circle", "circle-open"]


def test_without_a_sweep_there_is_no_curve() -> None:
    assert curve_figure(found_by()) is None
    assert 'id="plot-curve"' not in _page(found_by(timeline=()))
