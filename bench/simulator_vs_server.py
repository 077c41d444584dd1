"""The simulator against our own server: a trace at 70 % of saturation, measured and foretold.

    python bench/simulator_vs_server.py MODEL --trace TRACE --out DIR

Three parts, each of less than two minutes, so that each can have the machine to itself:

    calibrate   one client alone, then a sweep to saturation at the mean lengths; both logged
    replay      another run of the server answers a piece of the trace at 70 % of that rate
    simulate    `simulate serving --steps … --alone …` of the same piece; prints both and the errors

The piece does not begin where the trace does, and no request of the calibration comes from it.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

LOAD = 0.7
"""Of saturation."""
ENGINE = ("--threads", "1", "--max-tokens-per-step", "256")
"""One core for the engine; client, server and tokens share the other."""
CHUNK = 256
TOKEN_IDS = "10:8000"  # noqa: S105  a range of token ids
CLI = (sys.executable, "-m", "ridgeline.cli.main")
FIELDS = ("ttft_seconds", "tpot_seconds", "e2e_seconds")
COLUMNS = ("mean", "p50", "p90")


@contextmanager
def served(model: str, out: Path, log: Path) -> Iterator[tuple[str, int]]:
    """A server; its address and its number of KV blocks."""
    command = [*CLI, "serve", model, "--port", "0", "--step-log", str(log), *ENGINE, "--json"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    with (out / "server.err").open("w") as errors:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, env=environment)
    try:
        assert process.stdout is not None
        ready = json.loads(process.stdout.readline())
        yield ready["address"], ready["engine"]["ledger"]["num_blocks"]
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


def load_test(address: str, *options: str) -> dict[str, Any]:
    """What `ridgeline loadtest` says; progress goes to our own stderr."""
    command = [*CLI, "loadtest", address, "--token-ids", TOKEN_IDS, "--json", *options]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def piece(trace: Path, skip: int, count: int, out: Path) -> Path:
    """So many requests of a trace, as a trace of their own."""
    lines = trace.read_text().splitlines()
    header = [] if trace.suffix == ".jsonl" else lines[:1]
    chosen = lines[len(header) + skip :][:count]
    path = out / f"piece{trace.suffix}"
    path.write_text("\n".join([*header, *chosen]) + "\n")
    return path


def calibrate(asked: argparse.Namespace, out: Path) -> None:
    """The step log, a lone client, and the highest rate that holds."""
    rows = trace_rows(asked.trace, asked.skip, asked.requests)
    prompt = round(sum(row[1] for row in rows) / len(rows) * asked.scale)
    answer = max(2, round(sum(row[2] for row in rows) / len(rows) * asked.scale))
    with served(asked.model, out, out / "steps.csv") as (address, blocks):
        alone = load_test(
            *(address, "--arrivals", "closed", "--concurrency", "1", "--requests", "30"),
            *("--input-tokens", "16", "--output-tokens", "4", *lag(asked)),
        )
        (out / "alone.json").write_text(json.dumps(alone))
        swept = load_test(
            *(address, "--sweep", "--rate", str(asked.rate), "--seconds", str(asked.stage)),
            *("--input-tokens", str(prompt), "--output-tokens", str(answer), "--seed", "1"),
            *lag(asked),
        )
        (out / "sweep.json").write_text(json.dumps(swept))
    state = {"kv_blocks": blocks, "prompt": prompt, "answer": answer, "max_rate": swept["max_rate"]}
    (out / "state.json").write_text(json.dumps(state))
    print(f"saturation: {swept['max_rate']} requests/s of {prompt} tokens in, {answer} out")


def replay(asked: argparse.Namespace, out: Path) -> None:
    """The piece on the server."""
    with served(asked.model, out, out / "steps_of_replay.csv") as (address, _):
        found = load_test(address, *piece_options(asked, out), *lag(asked))
    (out / "measured.json").write_text(json.dumps(found))


def simulate(asked: argparse.Namespace, out: Path) -> None:
    """The piece in simulation, and what became of it."""
    state = json.loads((out / "state.json").read_text())
    command = [
        *(*CLI, "simulate", "serving", "--steps", str(out / "steps.csv"), "--json"),
        *("--alone", str(out / "alone.json"), "--kv-blocks", str(state["kv_blocks"])),
        *("--max-tokens-per-step", str(CHUNK), *piece_options(asked, out)),
    ]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    found = json.loads(done.stdout)
    (out / "simulated.json").write_text(done.stdout.decode())
    measured = json.loads((out / "measured.json").read_text())
    print("\n".join(table(measured, found)))


def piece_options(asked: argparse.Namespace, out: Path) -> list[str]:
    """The same for the load test and for the simulation."""
    state = json.loads((out / "state.json").read_text())
    path = piece(asked.trace, asked.skip, asked.requests, out)
    rows = trace_rows(asked.trace, asked.skip, asked.requests)
    own_rate = len(rows) / max(rows[-1][0] - rows[0][0], 1e-9)
    speed = LOAD * state["max_rate"] / own_rate
    return [
        *("--trace", str(path), "--trace-speed", f"{speed:.6f}"),
        *("--length-scale", str(asked.scale), "--warmup", "0", "--seed", "7"),
    ]


def table(measured: dict[str, Any], found: dict[str, Any]) -> list[str]:
    """Both and the error, as Markdown."""
    client = measured["client"]
    said = (
        f"{measured['requests']['ok']} of {measured['requests']['sent']} requests answered; client:"
        f" send lag p99 {client['send_lag_p99'] * 1e3:.1f} ms, {client['cpu_share']:.0%} of a core;"
        f" in the prefix cache {measured['lengths']['cached_share']:.1%} of the input"
        f" (simulated {found['lengths']['cached_share']:.1%})"
    )
    lines = [
        said,
        "",
        "| figure | measured | simulated | error | 80 % interval |",
        "|---|---|---|---|---|",
    ]
    for field in FIELDS:
        for column in COLUMNS:
            seen, foretold = measured[field][column], found[field][column]
            low, high = found["interval"][field][column]
            lines.append(
                f"| {field.split('_')[0].upper()} {column} | {seen * 1e3:.1f} ms |"
                f" {foretold * 1e3:.1f} ms | {foretold / seen - 1:+.1%} |"
                f" {low * 1e3:.1f} to {high * 1e3:.1f} ms |"
            )
    seen, foretold = measured["output_tokens_per_second"], found["output_tokens_per_second"]
    lines.append(
        f"| output tokens/s | {seen:.1f} | {foretold:.1f} | {foretold / seen - 1:+.1%} | |"
    )
    return lines


def trace_rows(trace: Path, skip: int, count: int) -> list[tuple[float, int, int]]:
    """Seconds, prompt tokens and answer tokens."""
    from ridgeline.records.request_trace import read_trace

    return [
        (row.at_seconds, row.input_tokens, row.output_tokens)
        for row in read_trace(trace)[skip : skip + count]
    ]


def lag(asked: argparse.Namespace) -> tuple[str, ...]:
    """What the client may lag on a machine that it shares with the server."""
    return ("--max-send-lag", str(asked.max_send_lag))


def main() -> None:
    """Run the parts that are asked for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--trace", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=Path("simulator_vs_server"))
    parser.add_argument("--part", choices=("calibrate", "replay", "simulate"), default=None)
    parser.add_argument("--skip", type=int, default=1000, help="requests of the trace")
    parser.add_argument("--requests", type=int, default=110)
    parser.add_argument("--scale", type=float, default=1 / 32, help="of lengths")
    parser.add_argument("--rate", type=float, default=0.5, help="of the sweep's first stage")
    parser.add_argument("--stage", type=float, default=12.0, help="seconds of the sweep's stages")
    parser.add_argument("--max-send-lag", type=float, default=0.05)
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    for part in (calibrate, replay, simulate):
        if asked.part in (None, part.__name__):
            part(asked, asked.out)


if __name__ == "__main__":
    main()
