"""The queue simulator beside Gavel's: CPU seconds and mean completion on one trace.

    git clone https://github.com/stanford-futuredata/gavel
    python -m bench.queue_vs_gavel gavel/scheduler --jobs 400 --gpus 64

The peer is the simulator of Narayanan et al., "Heterogeneity-aware cluster scheduling policies for
deep learning workloads", OSDI 2020, run by its own driver (`simulate_scheduler_with_trace.py`), on
the first jobs of one of its Philly-derived traces whose model has a measured throughput on a V100,
which makes steps into seconds. Both play first in, first out on one kind of GPU. Packages that this
policy does not call (solvers, remote calls, completion of matrices) are empty stand-ins.

A run is a whole command, start of Python included; both are run in turns. Ratios above 1: we are
faster (Hodges-Lehmann over the rounds with its Wilcoxon interval; it needs 6 rounds).
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import platform
import re
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from bench.queue_vs_peers import timed

from ridgeline.measure.statistics.intervals import ratio_interval

START = """
import runpy, sys
from unittest import mock
for name in sys.argv[1].split(","):
    try:
        __import__(name)
    except ImportError:
        sys.modules[name] = mock.MagicMock()
sys.argv = sys.argv[2:]
sys.path[:0] = [".", "policies"]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
ABSENT = "cvxpy,matrix_completion,grpc,psutil,scipy,scipy.optimize,runtime.rpc"
DRIVER = "scripts/drivers/simulate_scheduler_with_trace.py"
TRACE = "traces/msr/seed=0/ee9e8c.trace"
_MEAN = re.compile(r"Average job completion time: ([0-9.]+) seconds")


class Row(NamedTuple):
    """A job of the trace."""

    kind: str
    steps: int
    submitted_seconds: float
    gpus: int
    runs_seconds: float


def main() -> None:
    """Compare whole commands in turns, and what they answer."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("peer", type=Path, help="the folder scheduler of Gavel")
    parser.add_argument("--trace", default=TRACE)
    parser.add_argument("--jobs", type=int, default=400, help="lines of the trace, from the first")
    parser.add_argument("--gpus", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=6)
    asked = parser.parse_args()
    rows = usable_rows(asked.peer, asked.trace, asked.jobs)
    print(f"Python {platform.python_version()}, load average {os.getloadavg()[0]:.1f}")
    print(f"{asked.trace}: {len(rows):,} of {asked.jobs:,} jobs, {asked.gpus} GPUs, fifo")
    theirs: list[float] = []
    ours: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        room = Path(folder)
        theirs_file, our_file = room / "peer.trace", room / "jobs.csv"
        write_for_peer(theirs_file, rows)
        write_for_us(our_file, rows)
        for _ in range(asked.rounds):
            taken, their_mean = peer_run(asked.peer, theirs_file, asked.gpus)
            theirs.append(taken)
            taken, our_mean = our_run(our_file, asked.gpus)
            ours.append(taken)
    found = ratio_interval(theirs, ours)
    print(f"CPU seconds: peer {statistics.median(theirs):.2f}, ours {statistics.median(ours):.2f}")
    print(f"ratio {found.ratio:.1f} [{found.low:.1f}, {found.high:.1f}]")
    print(f"mean completion: peer {their_mean:,.1f} s, ours {our_mean:,.1f} s,")
    print(f"  strict first in, first out in twenty lines {plain_mean(rows, asked.gpus):,.1f} s")


def usable_rows(peer: Path, trace: str, count: int) -> list[Row]:
    """The first jobs of a trace whose length on a V100 is known."""
    measured = json.loads((peer / "simulation_throughputs.json").read_text())["v100"]
    found = []
    for line in (peer / trace).read_text().splitlines()[:count]:
        kind, _, _, _, steps, submitted, gpus = line.split("\t")
        throughput = measured.get(str((kind, int(gpus))), {}).get("null", 0.0)
        if throughput:
            seconds = int(steps) / throughput
            found.append(Row(kind, int(steps), float(submitted), int(gpus), seconds))
    return found


def write_for_peer(path: Path, rows: Sequence[Row]) -> None:
    """Write jobs in the ten columns that the peer's driver reads."""
    lines = [
        "\t".join([one.kind, "run", ".", "-n", "0", str(one.steps), str(one.gpus), "1", "-1",
                   str(one.submitted_seconds)])
        for one in rows
    ]  # fmt: skip
    path.write_text("\n".join(lines) + "\n")


def write_for_us(path: Path, rows: Sequence[Row]) -> None:
    """Write the same jobs as a table."""
    with path.open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(("submit_seconds", "duration_seconds", "num_gpus"))
        table.writerows((one.submitted_seconds, one.runs_seconds, one.gpus) for one in rows)


def peer_run(peer: Path, trace: Path, gpus: int) -> tuple[float, float]:
    """CPU seconds of the peer, and its mean completion time."""
    taken, said = timed(
        [sys.executable, "-c", START, ABSENT, DRIVER, "-t", str(trace), "-p", "fifo", "-c",
         f"{gpus}:0:0", "--seed", "0", "--throughputs_file", "simulation_throughputs.json"],
        peer,
    )  # fmt: skip
    mean = _MEAN.search(said)
    if mean is None:
        raise SystemExit(f"the peer said no mean completion time:\n{said[-2000:]}")
    return taken, float(mean[1])


def our_run(trace: Path, gpus: int) -> tuple[float, float]:
    """CPU seconds of our command, and its mean completion time."""
    taken, said = timed(
        [sys.executable, "-m", "ridgeline.cli.main", "queue", "simulate", str(trace), "--gpus",
         str(gpus), "--policy", "fifo", "--json"],
        Path.cwd(),
    )  # fmt: skip
    return taken, json.loads(said)["policies"][0]["mean_completion_seconds"]


def plain_mean(rows: Sequence[Row], gpus: int) -> float:
    """The mean completion of strict first in, first out, by a simulation that shares nothing."""
    free, now, running, total = gpus, 0.0, list[tuple[float, int]](), 0.0
    for one in sorted(rows, key=lambda row: row.submitted_seconds):
        now = max(now, one.submitted_seconds)
        running.sort()
        while running and (running[0][0] <= now or free < one.gpus):
            end, given = running.pop(0)
            now, free = max(now, end), free + given
        free -= one.gpus
        running.append((now + one.runs_seconds, one.gpus))
        total += now + one.runs_seconds - one.submitted_seconds
    return total / len(rows)


if __name__ == "__main__":
    main()
