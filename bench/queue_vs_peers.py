"""Our queue simulator beside Tiresias' on the same traces: CPU seconds, and what they answer.

    python bench/queue_vs_peers.py TIRESIAS/simulator [--rounds 6] [--jobs 3000] [--policy fifo]

The peer is the simulator of Gu et al., NSDI 2019 (github.com/SymbioticLab/Tiresias). It is of
Python 2 but for `sys.maxint`, which is set here, so that both run on the same Python; its cluster
is counted (`--scheme=count`), and its two queues are set as its manual tells, to 3,600 GPU-seconds.
Two traces, both written as its own columns, which we read as they are: its 60 jobs over and over on
8 GPUs, and jobs drawn like those of Philly on 256 GPUs.

Whole commands in turns: start of Python, reading of the trace and all figures included; and the
simulators alone, by taking off what a trace of one job costs. Ratios above 1: we are faster
(Hodges-Lehmann over the rounds with its Wilcoxon interval; it needs 6 rounds).
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ridgeline.measure.statistics.intervals import ratio_interval

POLICIES = {"fifo": "fifo", "shortest": "srtf", "dlas-gpu": "las"}
"""What the peer calls them, and what we do."""
HEAD = ("job_id", "num_gpu", "submit_time", "iterations", "model_name", "duration", "interval")
START = (
    "import runpy, sys; sys.path.insert(0, '.'); sys.maxint = sys.maxsize; sys.argv[0] = 'run_sim'"
    "; import jobs; jobs.JOBS.num_queue = 2; jobs.JOBS.queues = [[], []]"
    "; jobs.JOBS.queue_limit = [3600]; runpy.run_path('run_sim.py', run_name='__main__')"
)
Row = tuple[int, int, int]
"""GPUs, submission and duration of one job, in whole seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """Jobs and the GPUs that they queue for, in files of the peer's."""

    title: str
    jobs: Path
    spec: Path
    gpus: int


def main() -> None:
    """Print a table per trace."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("peer", type=Path)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--jobs", type=int, default=3000)
    parser.add_argument("--policy", action="append", choices=list(POLICIES))
    asked = parser.parse_args()
    print(f"Python {platform.python_version()}, load average {os.getloadavg()[0]:.1f}")
    with tempfile.TemporaryDirectory() as folder:
        room = Path(folder)
        own = own_jobs(asked.peer / "60_job.csv")
        one = written(room, "one job", own[:1], gpus=8)
        for trace in (
            written(room, "its own 60 jobs", own, gpus=8),
            written(room, "its own, over and over", repeated(own, asked.jobs), gpus=8),
            written(room, "as Philly's", drawn(asked.jobs, gpus=256, demand=1.5), gpus=256),
        ):
            compare(asked.peer, trace, one, room, asked.rounds, asked.policy or list(POLICIES))


def own_jobs(path: Path) -> list[Row]:
    """The jobs of the peer's own trace."""
    with path.open() as file:
        return [
            (int(row["num_gpu"]), int(row["submit_time"]), int(row["duration"]))
            for row in csv.DictReader(file)
        ]


def repeated(own: Sequence[Row], count: int) -> list[Row]:
    """A trace over and over, each time after the last submission of the time before."""
    gap = own[-1][1] - own[-2][1]
    period = own[-1][1] + gap
    return [
        (gpus, submitted + turn * period, runs)
        for turn in range(-(-count // len(own)))
        for gpus, submitted, runs in own
    ][:count]


def drawn(count: int, *, gpus: int, demand: float) -> list[Row]:
    """Jobs mostly of one GPU with log-normal durations, which ask for `demand` of all GPUs."""
    random = np.random.default_rng(0)
    sizes = random.choice([1, 2, 4, 8, 16, 32], count, p=[0.6, 0.12, 0.12, 0.1, 0.04, 0.02])
    seconds = np.ceil(np.minimum(random.lognormal(8.0, 1.8, count), 30 * 86400.0))
    gap = float((sizes * seconds).mean()) / (gpus * demand)
    submitted = np.floor(np.cumsum(random.exponential(gap, count)))
    rows = zip(sizes.tolist(), submitted.tolist(), seconds.tolist(), strict=True)
    return [(int(size), int(at), int(runs)) for size, at, runs in rows]


def written(room: Path, title: str, rows: Sequence[Row], *, gpus: int) -> Trace:
    """A trace and its cluster as files of the peer's."""
    jobs, spec = room / f"{title}.csv", room / f"{title} cluster.csv"
    with jobs.open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(HEAD)
        for place, (size, submitted, runs) in enumerate(rows):
            table.writerow((place, size, submitted, 1, "vgg19", runs, 0))
    node = "num_switch,num_node_p_switch,num_gpu_p_node,num_cpu_p_node,mem_p_node"
    spec.write_text(f"{node}\n1,{gpus // 8},8,128,256\n")
    return Trace(title=f"{title}: {len(rows):,} jobs, {gpus:,} GPUs", jobs=jobs, spec=spec,
                 gpus=gpus)  # fmt: skip


def compare(
    peer: Path, trace: Trace, one: Trace, room: Path, rounds: int, policies: Sequence[str]
) -> None:
    """Time both in turns under every policy, and set their mean completion times side by side."""
    print(f"\n{trace.title}\n")
    print("| policy | peer, CPU s | ours, CPU s | ratio | alone | mean completion, peer | ours |")
    print("|---|---|---|---|---|---|---|")
    for theirs in policies:
        ours = POLICIES[theirs]
        spent: dict[str, list[float]] = {key: [] for key in ("peer", "ours", "peer0", "ours0")}
        for _ in range(rounds):
            taken, peer_mean = peer_run(peer, trace, theirs, room)
            spent["peer"].append(taken)
            taken, our_mean = our_run(trace, ours)
            spent["ours"].append(taken)
            spent["peer0"].append(peer_run(peer, one, theirs, room)[0])
            spent["ours0"].append(our_run(one, ours)[0])
        whole = ratio_interval(spent["peer"], spent["ours"])
        alone = "start-up dominates"
        peer_alone = [a - b for a, b in zip(spent["peer"], spent["peer0"], strict=True)]
        our_alone = [a - b for a, b in zip(spent["ours"], spent["ours0"], strict=True)]
        if min(our_alone) > 0.02 and min(peer_alone) > 0.02:  # below that it is the clock's noise
            found = ratio_interval(peer_alone, our_alone)
            alone = f"{found.ratio:.1f} [{found.low:.1f}, {found.high:.1f}]"
        print(
            f"| {theirs}, {ours} | {statistics.median(spent['peer']):.2f} |"
            f" {statistics.median(spent['ours']):.2f} |"
            f" {whole.ratio:.1f} [{whole.low:.1f}, {whole.high:.1f}] | {alone} |"
            f" {peer_mean:,.1f} s | {our_mean:,.1f} s |",
            flush=True,
        )


def peer_run(peer: Path, trace: Trace, policy: str, room: Path) -> tuple[float, float]:
    """CPU seconds of the peer, and its mean completion time."""
    log = room / "log"
    taken, _ = timed(
        [sys.executable, "-c", START, f"--cluster_spec={trace.spec}", "--scheme=count",
         f"--trace_file={trace.jobs}", f"--schedule={policy}", f"--log_path={log}"],
        peer,
    )  # fmt: skip
    with (log / "job.csv").open() as file:
        ended = [float(row["JCT"]) for row in csv.DictReader(file)]
    return taken, statistics.fmean(ended)


def our_run(trace: Trace, policy: str) -> tuple[float, float]:
    """CPU seconds of our command, and its mean completion time."""
    taken, said = timed(
        [sys.executable, "-m", "ridgeline.cli.main", "queue", "simulate", str(trace.jobs),
         "--gpus", str(trace.gpus), "--policy", policy, "--json"],
        Path.cwd(),
    )  # fmt: skip
    return taken, json.loads(said)["policies"][0]["mean_completion_seconds"]


def timed(command: Sequence[str], folder: Path) -> tuple[float, str]:
    """CPU seconds of a command, and what it printed."""
    before = _processor_seconds()
    done = subprocess.run(command, cwd=folder, capture_output=True, check=True, text=True)
    return _processor_seconds() - before, done.stdout


def _processor_seconds() -> float:
    """CPU seconds of all children so far."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main()
