"""What HTTP adds to a token of one stream: CPU time of the server beside the engine's own.

    python bench/serve_http_cost.py [MODEL] [--rounds 6] [--tokens 900]

The same greedy completion in turns: in an engine in this process, and streamed from `ridgeline
serve MODEL --threads 1`. CPU time holds where other programs use the machine, too; wall time is
printed beside it.
"""

from __future__ import annotations

import argparse
import gc
import os
import re
import statistics
import subprocess
import sys
import time
from pathlib import Path

import httpx

from ridgeline.serve.config import EngineConfig
from ridgeline.serve.engine.engine import ServingEngine
from ridgeline.serve.messages import Delta, Sampling, Submit

LIBRARY = Path(__file__).parents[1] / "examples/models/library"
PROMPT = list(range(10, 20))
KV = 64 * 2**20


def cpu_seconds(pid: int) -> float:
    """What all threads of a process have used so far."""
    threads = os.listdir(f"/proc/{pid}/task")
    told = (Path(f"/proc/{pid}/task/{one}/schedstat").read_text().split()[0] for one in threads)
    return sum(int(one) for one in told) / 1e9


def in_process(engine: ServingEngine, tokens: int) -> tuple[float, float]:
    """CPU and wall milliseconds a token."""
    sampling = Sampling(temperature=0.0, max_tokens=tokens, ignore_eos=True)
    engine.handle(Submit(id="a", prompt=tuple(PROMPT), sampling=sampling))
    cpu, wall, count = time.process_time(), time.perf_counter(), 0
    while engine.has_work:
        engine.step()
        count += sum(len(one.tokens) for one in engine.take() if isinstance(one, Delta))
    assert count == tokens
    return (time.process_time() - cpu) / tokens * 1e3, (time.perf_counter() - wall) / tokens * 1e3


def over_http(address: str, front: int, engine: int, tokens: int) -> tuple[float, float, float]:
    """CPU milliseconds a token of the front and of the engine's process, and wall milliseconds."""
    before, wall = (cpu_seconds(front), cpu_seconds(engine)), time.perf_counter()
    body = {"prompt": PROMPT, "max_tokens": tokens, "temperature": 0, "ignore_eos": True}
    with httpx.stream(
        "POST", address + "/v1/completions", json={**body, "stream": True}, timeout=600
    ) as reply:
        assert reply.status_code == 200
        for _ in reply.iter_lines():
            pass
    wall = time.perf_counter() - wall
    spent = (cpu_seconds(front) - before[0], cpu_seconds(engine) - before[1])
    return spent[0] / tokens * 1e3, spent[1] / tokens * 1e3, wall / tokens * 1e3


def main() -> None:
    """Measure in turns and print the middles."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model", nargs="?", default=str(LIBRARY))
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--tokens", type=int, default=900)
    asked = parser.parse_args()
    engine = ServingEngine(EngineConfig(model=asked.model, threads=1, kv_bytes=KV))
    gc.freeze()  # as the server's own process does
    words = [sys.executable, "-m", "ridgeline.cli.main", "serve", asked.model, "--port", "0"]
    words += ["--threads", "1", "--kv-bytes", str(KV)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as server:
        try:
            assert server.stdout is not None
            found = re.search(r"http://\S+?(?=/v1)", server.stdout.readline().decode())
            assert found is not None, "the server did not start"
            children = Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text().split()
            [host] = [int(one) for one in children]
            alone, streamed = [], []
            for number in range(asked.rounds + 1):
                one = in_process(engine, asked.tokens)
                other = over_http(found[0], server.pid, host, asked.tokens)
                if number:  # the first round warms up
                    alone.append(one)
                    streamed.append(other)
        finally:
            server.terminate()
    middles = [statistics.median(one) for one in zip(*alone, strict=True)]
    front, host_cpu, wall = (statistics.median(one) for one in zip(*streamed, strict=True))
    sys.stdout.write(
        f"ms a token, middles of {asked.rounds} rounds: engine in this process {middles[0]:.3f} CPU"
        f" ({middles[1]:.3f} wall); served: engine {host_cpu:.3f} CPU, front {front:.3f} CPU"
        f" ({wall:.3f} wall); HTTP adds {front + host_cpu - middles[0]:.3f} CPU\n"
    )


if __name__ == "__main__":
    main()
