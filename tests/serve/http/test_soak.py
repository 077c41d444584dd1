"""A rehearsal of `bench/serve_soak.py`: mixed requests, disconnects, adapters, and nothing left."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from bench.serve_soak import RoundResult, run_round, spread, write_adapter
from tests.serve.http.servers import LIBRARY, running

NUM_REQUESTS, NUM_ROUNDS = 60, 6


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")  # peft asks
def test_rounds_of_mixed_requests_leave_nothing_behind(tmp_path: Path) -> None:
    words = ["--port", "0", "--served-model-name", "base", "--kv-bytes", "16MiB", "--threads", "1"]
    for seed, name in enumerate(("first", "second")):
        write_adapter(LIBRARY, tmp_path / name, seed)
        words += ["--adapters", f"{name}={tmp_path / name}"]
    rounds: list[RoundResult] = []
    with running("ridgeline.cli.main", "serve", str(LIBRARY), *words) as server:
        server.wait_until_ready()
        for seed in range(NUM_ROUNDS):
            work = run_round(server.address, server.process.pid, NUM_REQUESTS, 8, seed)
            rounds.append(asyncio.run(work))
    for one in rounds:
        assert one.statuses == {"as expected": NUM_REQUESTS}
        assert (one.running, one.waiting, one.cache_usage) == (0, 0, 0)
    assert spread(rounds) < 0.02
