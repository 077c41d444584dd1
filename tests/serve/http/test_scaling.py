"""A server whose replicas follow the load: what operators see of it."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.serve.http.servers import Server, stub_server, until

SCALING = {"maximum": 2, "open_per_replica": 2.0, "down_window_seconds": 0.0}
SLOW = {"model": "library", "prompt": "SLOW FILL", "max_tokens": 150}


def fleet(server: Server) -> dict[str, Any]:
    found: dict[str, Any] = server.get("/health").json()["fleet"]
    return found


def metric(server: Server, name: str) -> float:
    found = re.search(rf"^{re.escape(name)} (\S+)$", server.get("/metrics").text, re.MULTILINE)
    assert found is not None, name
    return float(found[1])


@pytest.mark.slow
def test_replicas_come_and_go_and_health_metrics_and_log_tell(model: Path) -> None:
    with stub_server(model, scaling=SCALING) as server, ThreadPoolExecutor(4) as pool:
        assert fleet(server)["ready"] == 1
        open_ones = [pool.submit(server.post, "/v1/completions", SLOW) for _ in range(4)]
        until(lambda: fleet(server)["ready"] == 2, "a second replica")
        assert metric(server, 'ridgeline_replicas{model_name="library",state="ready"}') == 2
        assert metric(server, 'ridgeline_open_requests{model_name="library"}') == 4
        until(lambda: fleet(server)["desired"] == 1, "less to do")
        answers = [one.result() for one in open_ones]
        assert [one.json()["usage"]["completion_tokens"] for one in answers] == [150] * 4
        until(lambda: fleet(server)["draining"] == 0, "its end")
        found = fleet(server)
        assert (found["ready"], found["starting"]) == (1, 0)
        seconds = 'ridgeline_replica_seconds_total{model_name="library"}'
        assert metric(server, seconds) >= found["replica_seconds"] > found["startup_seconds"]
        server.process.terminate()
        assert server.process.wait(20) == 0
        events = [one["event"] for one in server.events]
        for event in ("scaling", "replica starts", "replica ready", "replica drains"):
            assert event in events
        ended = next(one for one in server.events if one["event"] == "replica ended")
        assert ended["drained_seconds"] >= 0.0
