"""The autoscaler against its forecast: a burst on local replicas, measured and simulated.

    python bench/autoscale_vs_simulator.py MODEL --out DIR

Four parts, each of less than two minutes, so that each can have the machine to itself:

    calibrate   one replica: a lone client, then 4 and 8 clients, steps logged
    startup     how long two more replicas take to start at once while the first one answers
    burst       a calm load, a burst of five times as much, calm again, on 1 to 3 replicas; every
                start, drain and end is logged, and every request counted
    simulate    `simulate serving` of the same trace, policy and start-up time; prints both

Several engines on a few cores do not scale: they take each other's time. So every step is stretched
to `--step` seconds by sleeping, as if a device beside the processor computed it: the engine, its
scheduler, the processes, the router and the autoscaler are real, only the device is not.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import httpx

HERE = Path(__file__).resolve().parent
CLI = (sys.executable, "-m", "ridgeline.cli.main")
STEP = "RIDGELINE_BENCH_STEP_SECONDS"
PROMPT, ANSWER, SEQUENCES = 64, 64, 4
"""Tokens of a request, and how many of them a replica answers at once."""
CALM, BURST = 1.2, 6.0
"""Requests per second; one replica answers about 2.5."""
PHASES = ((15.0, CALM), (35.0, BURST), (35.0, CALM))
"""Seconds, rate."""
SCALING = {"minimum": 1, "maximum": 3, "open_per_replica": 4.0, "down_window_seconds": 8.0}
TTFT = 1.0
"""Seconds; a later first token is a miss."""
TOKEN_IDS = "10:2000"  # noqa: S105  a range of token ids


def paced(config: Any) -> Any:
    """The engine, its steps stretched: what the replicas' processes build."""
    from ridgeline.serve.engine.engine import ServingEngine

    engine, least = ServingEngine(config), float(os.environ[STEP])
    forward = engine._runner.forward

    def stretched(batch: Any) -> Any:
        began = time.monotonic()
        computed = forward(batch)
        time.sleep(max(0.0, began + least - time.monotonic()))
        return computed

    engine._runner.forward = stretched  # type: ignore[method-assign]
    return engine


def serve(model: str, scaling: str, step_log: str) -> None:
    """What the server's process runs."""
    import msgspec

    from ridgeline.batching.scaling.settings import Scaling
    from ridgeline.serve.config import EngineConfig
    from ridgeline.serve.http.server import run_server
    from ridgeline.serve.http.settings import ServerSettings

    def say(address: str, ready: Any) -> None:
        blocks = ready.ledger.num_blocks
        print(json.dumps({"address": address, "kv_blocks": blocks}), flush=True)

    config = EngineConfig(
        model=model,
        dtype="fp32",
        threads=1,
        max_sequences=SEQUENCES,
        kv_bytes=1 << 24,
        step_log=step_log or None,
    )
    settings = ServerSettings(model_name="library", port=0)
    found = msgspec.convert(json.loads(scaling), Scaling) if scaling else None
    name = f"{Path(__file__).stem}:paced"
    run_server(config, settings, on_ready=say, scaling=found, factory=name)


@contextmanager
def served(
    asked: argparse.Namespace, scaling: dict[str, Any] | None, step_log: Path | None, log: Path
) -> Iterator[dict[str, Any]]:
    """A server; its address and blocks. Its log is kept."""
    words = [json.dumps(scaling) if scaling else "", str(step_log) if step_log else ""]
    command = [sys.executable, __file__, asked.model, "--serve", *words]
    path = os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", STEP: str(asked.step)}
    with log.open("w") as errors:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, env=environment)
    try:
        assert process.stdout is not None
        yield json.loads(process.stdout.readline())
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


def load_test(address: str, *options: str) -> dict[str, Any]:
    """What `ridgeline loadtest` says."""
    command = [*CLI, "loadtest", address, "--token-ids", TOKEN_IDS, "--max-send-lag", "0.1"]
    done = subprocess.run([*command, "--json", *options], stdout=subprocess.PIPE, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def fleet(address: str) -> dict[str, Any]:
    """What `/health` says of the replicas, and when."""
    found: dict[str, Any] = httpx.get(f"{address}/health", timeout=10).json()["fleet"]
    return {**found, "at": time.monotonic()}


def calibrate(asked: argparse.Namespace) -> None:
    """Steps, and what HTTP takes."""
    out = asked.out
    lengths = ("--input-tokens", str(PROMPT), "--output-tokens", str(ANSWER))
    with served(asked, None, out / "steps.csv", out / "calibrate.log") as ready:
        alone = load_test(
            *(ready["address"], "--arrivals", "closed", "--concurrency", "1", "--requests", "15"),
            *("--input-tokens", "16", "--output-tokens", "4"),
        )
        for clients in ("4", "8"):
            load_test(
                *(ready["address"], "--arrivals", "closed", "--concurrency", clients),
                *("--seconds", "10", *lengths),
            )
    (out / "alone.json").write_text(json.dumps(alone))


def startup(asked: argparse.Namespace) -> None:
    """The policy starts two at once, and they take each other's time; so they do here."""
    scaling = {**SCALING, "open_per_replica": 1.0}
    with served(asked, scaling, None, asked.out / "startup.log") as ready:
        load_test(
            *(ready["address"], "--arrivals", "closed", "--concurrency", "4", "--seconds", "25"),
            *("--input-tokens", str(PROMPT), "--output-tokens", str(ANSWER)),
        )
        seconds = fleet(ready["address"])["startup_seconds"]
    state = {"kv_blocks": ready["kv_blocks"], "startup_seconds": seconds}
    (asked.out / "state.json").write_text(json.dumps(state))
    print(f"two more replicas take requests {seconds:.2f} s after their start")


def trace(path: Path) -> None:
    """Poisson arrivals of the phases, as Azure's CSV; the same in every run."""
    rng, begin, now = random.Random(5), datetime(2026, 1, 1), 0.0  # noqa: DTZ001  as Azure writes
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(("TIMESTAMP", "ContextTokens", "GeneratedTokens"))
        end = 0.0
        for seconds, rate in PHASES:
            now, end = end, end + seconds
            while (now := now + rng.expovariate(rate)) < end:
                stamp = (begin + timedelta(seconds=now)).strftime("%Y-%m-%d %H:%M:%S.%f")
                rows.writerow((stamp, PROMPT, ANSWER))


def replayed(asked: argparse.Namespace) -> tuple[str, ...]:
    """The same for the load test and the simulation."""
    path = asked.out / "burst.csv"
    trace(path)
    return ("--trace", str(path), "--warmup", "0", "--seed", "7", "--slo-ttft", str(TTFT))


def burst(asked: argparse.Namespace) -> None:
    """The trace on replicas that come and go."""
    with served(asked, SCALING, None, asked.out / "burst.log") as ready:
        begin = fleet(ready["address"])
        found = load_test(ready["address"], *replayed(asked))
        end = fleet(ready["address"])
    # The first replica is always there, so what counts is what came on top of it.
    found["on_top"] = end["replica_seconds"] - begin["replica_seconds"] - end["at"] + begin["at"]
    found["at_end"] = end
    (asked.out / "measured.json").write_text(json.dumps(found))


def simulate(asked: argparse.Namespace) -> None:
    """The forecast, and what became of it."""
    out, state = asked.out, json.loads((asked.out / "state.json").read_text())
    options = {
        "--kv-blocks": state["kv_blocks"],
        "--max-sequences": SEQUENCES,
        "--max-length": 256,
        "--replicas": f"{SCALING['minimum']}:{SCALING['maximum']}",
        "--scale-target": SCALING["open_per_replica"],
        "--scale-down-after": SCALING["down_window_seconds"],
        "--startup": state["startup_seconds"],
    }
    command = [*CLI, "simulate", "serving", "--steps", str(out / "steps.csv"), "--json"]
    command += ["--alone", str(out / "alone.json"), *replayed(asked)]
    command += [str(word) for pair in options.items() for word in pair]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    (out / "simulated.json").write_bytes(done.stdout)
    measured = json.loads((out / "measured.json").read_text())
    print("\n".join(table(measured, json.loads(done.stdout), out / "burst.log")))


def table(measured: dict[str, Any], found: dict[str, Any], log: Path) -> list[str]:
    """Both and the error, as Markdown."""
    requests, client, use = measured["requests"], measured["client"], found["fleet"]
    on_top = use["replica_seconds"] - found["simulated_seconds"]
    events = [json.loads(line) for line in log.read_text().splitlines() if line.startswith("{")]
    counts = {
        name: sum(one["event"] == f"replica {name}" for one in events)
        for name in ("ready", "drains", "ended", "failed")
    }
    rows = [
        ("requests that missed TTFT", missed(measured), missed(found)),
        ("replica-seconds beyond the first", measured["on_top"], on_top),
        (
            "replica-seconds",
            measured["on_top"] + found["simulated_seconds"],
            use["replica_seconds"],
        ),
    ]
    for field in ("ttft_seconds", "tpot_seconds", "e2e_seconds"):
        for column in ("mean", "p50", "p90"):
            rows.append((f"{field} {column}", measured[field][column], found[field][column]))
    said = (
        f"{requests['ok']} of {requests['sent']} requests answered, {requests['failed']} failed;"
        f" replicas: {counts['ready']} ready, {counts['drains']} drained, {counts['ended']} ended,"
        f" {counts['failed']} failed; at the end {measured['at_end']['ready']}; start-up"
        f" {measured['at_end']['startup_seconds']:.2f} s; client: send lag p99"
        f" {client['send_lag_p99'] * 1e3:.1f} ms, {client['cpu_share']:.0%} of a core"
    )
    return [
        said,
        "",
        "| figure | measured | simulated | error |",
        "|---|---|---|---|",
        *(f"| {name} | {a:.4g} | {b:.4g} | {b / a - 1:+.1%} |" for name, a, b in rows),
    ]


def missed(found: dict[str, Any]) -> float:
    """Requests that did not meet the objective."""
    sent: int = found["requests"]["sent"]
    return round(sent * (1.0 - found["goodput_share"]))


def main() -> None:
    """Run the parts that are asked for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--out", type=Path, default=Path("autoscale_vs_simulator"))
    parser.add_argument(
        "--part", choices=("calibrate", "startup", "burst", "simulate"), default=None
    )
    parser.add_argument("--step", type=float, default=0.025, help="seconds that a step takes")
    parser.add_argument("--serve", nargs=2, default=None, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.serve is not None:
        serve(asked.model, *asked.serve)
        return
    asked.out.mkdir(parents=True, exist_ok=True)
    for part in (calibrate, startup, burst, simulate):
        if asked.part in (None, part.__name__):
            part(asked)


if __name__ == "__main__":
    main()
