"""How much faster than time the simulator is, on one core.

    taskset -c 0 python bench/simulator_speed.py --traces ../shared/data/request_traces

Whole commands, start of Python and reading of the trace included: the Azure code trace on one
H100 (seconds of trace over seconds of simulation, goal 1,000), with and without its prediction
interval, for which the fleet is simulated two more times; and 300 requests, goal 2 s. Processor
seconds stand beside those of the clock, for machines that others use as well.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROUNDS = 5
COMMAND = (
    *(sys.executable, "-m", "ridgeline.cli.main", "simulate", "serving"),
    *("--model", "llama3.1-8b", "--gpu", "H100", "--json"),
)


def timed(*options: str) -> tuple[list[float], list[float], float]:
    """Seconds and processor seconds of the whole command by round, and the simulated seconds."""
    taken, used, simulated = [], [], 0.0
    for _ in range(ROUNDS):
        began, before = time.perf_counter(), _processor_seconds()
        done = subprocess.run([*COMMAND, *options], capture_output=True, check=True)
        taken.append(time.perf_counter() - began)
        used.append(_processor_seconds() - before)
        simulated = json.loads(done.stdout)["simulated_seconds"]
    return taken, used, simulated


def _processor_seconds() -> float:
    """Of all children so far."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--traces", type=Path, required=True)
    traces = parser.parse_args().traces
    azure = ("--trace", str(traces / "azure2023_code.csv"))
    mooncake = ("--trace", str(traces / "mooncake_conversation_head.jsonl"))
    cases = {
        "Azure code, 8,819 requests": (*azure, "--no-interval"),
        "the same with its interval": azure,
        "Azure code, first 300 requests": (*azure, "--requests", "300", "--no-interval"),
        "the same with their interval": (*azure, "--requests", "300"),
        "Mooncake, first 300 requests": (*mooncake, "--requests", "300", "--no-interval"),
    }
    print(f"| what | seconds (median of {ROUNDS}; least) | on the processor | times real time |")
    print("|---|---|---|---|")
    for name, options in cases.items():
        taken, used, simulated = timed(*options)
        middle = statistics.median(taken)
        print(
            f"| {name} | {middle:.2f}; {min(taken):.2f} | {statistics.median(used):.2f};"
            f" {min(used):.2f} | {simulated / middle:,.0f} |"
        )


if __name__ == "__main__":
    main()
