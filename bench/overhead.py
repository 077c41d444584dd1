"""What watching costs: the step of a script alone, under Ridgeline, and under TraceML.

    python bench/overhead.py [ROUNDS]

Every round starts the same script three ways, in turn and in changing order; the script times
its own steps. Printed are the ratios to the script alone (median step, Hodges-Lehmann estimate
over the rounds with its Wilcoxon interval). TraceML is measured when `traceml-ai` is installed.
"""

import importlib.util
import os
import platform
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

from ridgeline.measure.live.conductor import Conductor
from ridgeline.measure.statistics.intervals import ratio_interval
from ridgeline.measure.wire import Session

TRACEML_SECONDS = 300.0
SCRIPT = str(Path(__file__).parent / "scripts" / "ten_ms_step.py")


def alone() -> float:
    return step_of(subprocess.check_output([sys.executable, SCRIPT], text=True))


def under_ridgeline() -> float:
    with Conductor([SCRIPT], Session()) as run:
        run.steps(10_000)
        return step_of(run.output)


def under_traceml() -> float:
    program = Path(sys.executable).with_name("traceml")
    with tempfile.TemporaryDirectory() as logs:
        output = subprocess.run(
            [program, "run", "--logs-dir", logs, SCRIPT, "--args", "--traceml"],
            capture_output=True,
            text=True,
            check=True,
            timeout=TRACEML_SECONDS,
        )
    return step_of(output.stdout + output.stderr)


def step_of(output: str) -> float:
    found = re.search(r"STEP (\S+)", output)
    if found is None:
        raise SystemExit(f"the script printed no step time:\n{output[-2000:]}")
    return float(found[1])


def main() -> None:
    # TraceML starts the script under torchrun, which sets one thread unless it is told.
    os.environ["OMP_NUM_THREADS"] = str(torch.get_num_threads())
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 10
    ways = {"alone": alone, "Ridgeline": under_ridgeline}
    if importlib.util.find_spec("traceml_ai"):
        ways["TraceML"] = under_traceml
    times: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(rounds):
        order = list(ways)
        order = order[number % len(order) :] + order[: number % len(order)]
        for name in order:
            times[name].append(ways[name]())
        print(f"round {number + 1}/{rounds}", file=sys.stderr)
    print(f"{platform.processor() or platform.machine()}, torch {torch.__version__}")
    for name, seconds in times.items():
        interval = ratio_interval(seconds, times["alone"])
        low, high = interval.low, interval.high
        print(
            f"{name:10s} median step {sorted(seconds)[rounds // 2] * 1e3:7.3f} ms   "
            f"{interval.ratio - 1:+7.2%}  [{low - 1:+.2%}, {high - 1:+.2%}]"
        )


if __name__ == "__main__":
    main()
