"""Load tests of a stub server whose behaviour is known."""

from __future__ import annotations

import gc
import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest
from tests.ports import reserved_port
from tests.serve.loadtest.conftest import Load, Start

from ridgeline.errors import InputError
from ridgeline.records.load_test import Slo
from ridgeline.serve.loadtest.stage import LoadTesterTooSlow

FIELDS = {
    "requests", "ttft_seconds", "itl_seconds", "tpot_seconds", "e2e_seconds",
    "output_tokens_per_second", "goodput", "definitions", "client",
}  # fmt: skip


def sent_bodies(log: Path) -> list[dict]:
    return [json.loads(line) for line in log.read_text().splitlines()]


def test_figures_agree_with_what_the_server_did(start: Start, load: Load) -> None:
    url = start(ttft_seconds=0.1, itl_seconds=0.02)
    found = load(url, arrivals="constant", rate=40.0, requests=20, output_tokens=6)
    assert (found.requests.sent, found.requests.ok, found.requests.failed) == (20, 20, 0)
    assert found.ttft_seconds.p50 >= 0.1, "no token comes before its time, however crowded it is"
    assert found.e2e_seconds.p50 >= 0.1 + 5 * 0.02
    assert found.itl_seconds.count == 20 * 5
    assert found.tpot_seconds.count == 20
    assert found.lengths.output_tokens == 6


@pytest.mark.slow
@pytest.mark.alone
def test_figures_are_no_longer_than_what_the_server_took(start: Start, load: Load) -> None:
    url = start(ttft_seconds=0.1, itl_seconds=0.02)
    found = load(url, arrivals="constant", rate=40.0, requests=40, output_tokens=6)
    assert found.ttft_seconds.p50 == pytest.approx(0.1, abs=0.05)
    assert found.tpot_seconds.p50 == pytest.approx(0.02, rel=0.5)
    assert found.e2e_seconds.p50 == pytest.approx(0.2, abs=0.08)


def test_the_document_has_the_fields_of_the_contract(start: Start, load: Load) -> None:
    found = load(start(), rate=100.0, requests=10, output_tokens=4)
    document = json.loads(msgspec.json.encode(found))
    assert document.keys() >= FIELDS
    assert document["requests"].keys() >= {"sent", "ok", "failed"}
    assert document["ttft_seconds"].keys() >= {"p50", "p90", "p95", "p99", "p99.9"}
    assert document["client"].keys() >= {"send_lag_p99", "cpu_share"}


def test_what_the_caller_froze_stays_frozen(start: Start, load: Load) -> None:
    gc.freeze()
    load(start(), rate=100.0, requests=2, output_tokens=1)
    assert gc.get_freeze_count() > 0


@pytest.mark.slow
def test_tokens_are_counted_by_usage_and_not_by_chunks(start: Start, load: Load) -> None:
    url = start(bundle=4, itl_seconds=0.01)
    found = load(url, rate=50.0, requests=10, output_tokens=12)
    assert found.lengths.output_tokens == 12
    assert found.itl_seconds.count == 10 * 11
    assert found.itl_seconds.p50 == 0.0, "further tokens of a bundle come at once"
    assert found.stall_seconds.count == 10 * 2
    assert found.stall_seconds.p50 > 0.02


@pytest.mark.slow
def test_without_usage_there_are_no_token_figures(start: Start, load: Load) -> None:
    found = load(start(usage=False), rate=50.0, requests=5, output_tokens=4)
    assert found.ttft_seconds is not None
    assert found.tpot_seconds is None
    assert found.itl_seconds is None
    assert found.output_tokens_per_second is None
    assert any("no usage" in note for note in found.notes)


@pytest.mark.slow
def test_an_empty_role_chunk_is_not_the_first_token(start: Start, load: Load) -> None:
    found = load(start(ttft_seconds=0.2), api="chat", rate=50.0, requests=5, output_tokens=4)
    assert found.ttft_seconds.p50 >= 0.19
    assert found.itl_seconds.count == 5 * 3


@pytest.mark.slow
def test_a_closed_loop_keeps_its_number_under_way(start: Start, load: Load) -> None:
    url = start(ttft_seconds=0.05, itl_seconds=0.0)
    found = load(url, arrivals="closed", concurrency=4, requests=40, output_tokens=1)
    assert found.requests.ok == 40
    assert max(point.in_flight for point in found.timeline) <= 4.01


@pytest.mark.slow
def test_failed_requests_are_counted_by_kind_and_enter_no_latency(start: Start, load: Load) -> None:
    url = start(fail_every=4, break_every=5)
    found = load(url, arrivals="closed", concurrency=1, requests=40, output_tokens=4)
    assert found.requests.ok + found.requests.failed == 40
    kinds = " ".join(found.requests.failures)
    assert "503" in kinds
    assert found.requests.failed >= 15
    assert found.ttft_seconds.count == found.requests.ok
    assert found.goodput_share < 0.7


@pytest.mark.slow
def test_goodput_counts_what_met_every_objective(start: Start, load: Load) -> None:
    url = start(ttft_seconds=0.1, itl_seconds=0.001)
    kind = {"arrivals": "constant", "rate": 50.0, "requests": 10, "output_tokens": 4}
    assert load(url, **kind, slo=Slo(ttft_seconds=0.01)).goodput == 0
    assert load(url, **kind, slo=Slo(ttft_seconds=30.0, itl_seconds=9.0)).goodput_share == 1


@pytest.mark.slow
def test_a_server_that_refuses_unknown_fields_is_asked_another_way(
    start: Start, load: Load, tmp_path: Path
) -> None:
    log = tmp_path / "bodies"
    url = start(refuses=("ignore_eos",), log=str(log))
    load(url, rate=100.0, requests=3, output_tokens=5)
    assert sent_bodies(log)[-1]["min_tokens"] == 5
    url = start(refuses=("ignore_eos", "min_tokens"))
    found = load(url, rate=100.0, requests=3, output_tokens=5)
    assert any("end early" in note for note in found.notes)


@pytest.mark.slow
def test_prompts_have_the_length_asked_for_and_never_repeat(
    start: Start, load: Load, tmp_path: Path
) -> None:
    log = tmp_path / "bodies"
    url = start(log=str(log))
    found = load(url, rate=200.0, requests=20, input_tokens=50, output_tokens=2)
    assert found.lengths.input_tokens == 50
    prompts = [body["prompt"] for body in sent_bodies(log)[-20:]]
    assert len(set(prompts)) == 20
    load(url, rate=200.0, requests=20, input_tokens=50, output_tokens=2, token_ids=(100, 200))
    ids = sent_bodies(log)[-1]["prompt"]
    assert len(ids) == 50
    assert all(100 <= one < 200 for one in ids)


@pytest.mark.slow
def test_a_replayed_trace_keeps_times_lengths_and_shared_prefixes(
    start: Start, load: Load, tmp_path: Path
) -> None:
    trace, log = tmp_path / "trace.jsonl", tmp_path / "bodies"
    rows = [(0, 1200, 3, [0, 1, 2]), (100, 1300, 4, [0, 1, 3]), (300, 600, 5, [7, 8])]
    names = ("timestamp", "input_length", "output_length", "hash_ids")
    trace.write_text("\n".join(json.dumps(dict(zip(names, row, strict=True))) for row in rows))
    url = start(log=str(log))
    found = load(url, arrivals="trace", trace=trace, trace_speed=2.0, token_ids=(0, 1000))
    assert found.requests.ok == 3
    sent = sorted(sent_bodies(log)[-3:], key=lambda body: body["max_tokens"])
    assert [body["max_tokens"] for body in sent] == [3, 4, 5]
    first, second, third = (body["prompt"] for body in sent)
    assert [len(first), len(second), len(third)] == [1200, 1300, 600]
    assert first[:1024] == second[:1024]
    assert first[1024:1100] != second[1024:1100]
    assert first[:512] != third[:512]


@pytest.mark.slow
def test_a_sweep_finds_the_rate_that_a_server_of_known_capacity_sustains(
    start: Start, load: Load
) -> None:
    url = start(slots=20, ttft_seconds=0.1, itl_seconds=0.0)  # 200 requests/s at most
    found = load(
        url, sweep=True, arrivals="constant", rate=40.0, seconds=1.2, output_tokens=1,
        input_tokens=8,
    )  # fmt: skip
    assert found.max_rate is not None
    assert 80 <= found.max_rate <= 230
    assert found.curve[0].saturated is False
    assert found.curve[-1].saturated is True


@pytest.mark.slow
def test_a_starved_load_tester_refuses_to_report(start: Start) -> None:
    """A spinning thread in its process holds the interpreter: requests go out late."""
    command = [sys.executable, "-m", "tests.serve.loadtest.starved", start(), "0.01"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert ended.returncode == 1
    assert ended.stdout == ""
    assert "the load tester was the bottleneck" in ended.stderr


@pytest.mark.slow
def test_a_core_used_up_is_refused(start: Start, load: Load) -> None:
    with pytest.raises(LoadTesterTooSlow, match="of a core"):
        load(start(), rate=100.0, requests=20, output_tokens=4, max_cpu_share=1e-6)


@pytest.mark.slow
def test_an_interruption_reports_what_was_seen(start: Start, tmp_path: Path) -> None:
    log = tmp_path / "requests"
    command = [
        sys.executable, "-m", "ridgeline.cli.main", "loadtest", start(log=str(log)),
        "--seconds", "100", "--rate", "50", "--output-tokens", "4", "--max-send-lag", "60",
        "--json",
    ]  # fmt: skip
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        assert b"Ctrl-C" in process.stderr.readline()
        deadline = time.monotonic() + 60.0
        while not log.exists() or log.read_bytes().count(b"\n") < 50:
            assert time.monotonic() < deadline, "no load came"
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=30)
    finally:
        process.kill()
    assert process.returncode == 130
    document = json.loads(out)
    assert document["interrupted"] is True
    assert document["requests"]["ok"] > 0
    assert document["requests"]["sent"] < 1000


def test_a_server_that_is_not_there_is_one_clear_line(load: Load) -> None:
    with reserved_port() as port, pytest.raises(InputError, match="is the server up"):
        load(f"http://127.0.0.1:{port}")


def test_a_server_that_refuses_the_first_request_is_one_clear_line(
    start: Start, load: Load
) -> None:
    with pytest.raises(InputError, match="status 429"):
        load(start(status=429))
