"""Every virtual cluster of Microsoft's Philly trace beside a plain simulator of first come first.

    python bench/queue_philly.py philly.csv

The file is `simulator/traces/philly.csv` of github.com/petuum/adaptdl, branch osdi21-artifact:
82,248 jobs with time, duration, GPUs and virtual cluster. Each cluster gets as many GPUs as its
work needs at 90 %, and no fewer than its largest job, in one pool.

The plain simulator shares no code with ours: one loop over starts and ends, whole queues of jobs of
one size. Prints by cluster the jobs, the GPUs, our mean waits and the largest difference of any
job's start under `fifo` and `fifo-skip`, in seconds.
"""

from __future__ import annotations

import heapq
import math
import sys
from collections import defaultdict, deque
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ridgeline.queue.cluster import QueuedCluster
from ridgeline.queue.jobs import Jobs
from ridgeline.queue.readers.jobs_file import read_jobs
from ridgeline.queue.simulate import play_queue

BUSY = 0.9


def main() -> None:
    """Print one line per virtual cluster."""
    jobs = read_jobs(Path(sys.argv[1])).jobs
    queues = np.array(jobs.queues)
    print("| virtual cluster | jobs | GPUs | mean wait, fifo | fifo-skip | largest difference |")
    print("|---|---|---|---|---|---|")
    for name in sorted(set(jobs.queues)):
        mine = jobs.chosen(np.flatnonzero(queues == name).tolist())
        gpus = gpus_for(mine)
        waits, apart = [], 0.0
        for policy, plain in (("fifo", in_turn), ("fifo-skip", skipping)):
            starts = play_queue(mine, QueuedCluster(gpus=gpus), policy).first_start_seconds
            waits.append(float((starts - mine.submit_seconds).mean()))
            apart = max(apart, float(np.abs(starts - plain(mine, gpus)).max()))
        print(
            f"| {name} | {len(mine):,} | {gpus:,} | {waits[0]:,.1f} s | {waits[1]:,.1f} s |"
            f" {apart:.1e} s |",
            flush=True,
        )


def gpus_for(jobs: Jobs) -> int:
    """GPUs that the jobs keep busy for the most part, in nodes of eight."""
    work = float(jobs.num_gpus @ jobs.duration_seconds)
    span = float(jobs.submit_seconds[-1] - jobs.submit_seconds[0]) or 1.0
    needed = max(work / span / BUSY, float(jobs.num_gpus.max()))
    return 8 * math.ceil(needed / 8)


def in_turn(jobs: Jobs, gpus: int) -> NDArray[np.float64]:
    """Starts where the oldest blocks all behind it."""
    now, free, ends, starts = 0.0, gpus, list[tuple[float, int]](), list[float]()
    for submitted, lasts, size in rows(jobs):
        now = max(now, submitted)
        while ends and (ends[0][0] <= now or free < size):
            ended, held = heapq.heappop(ends)
            now, free = max(now, ended), free + held
        free -= size
        starts.append(now)
        heapq.heappush(ends, (now + lasts, size))
    return np.array(starts)


def skipping(jobs: Jobs, gpus: int) -> NDArray[np.float64]:
    """Starts where the oldest that fits goes first."""
    listed, starts = rows(jobs), np.zeros(len(jobs))
    queues: dict[int, deque[int]] = defaultdict(deque)
    free, ends, arrived = gpus, list[tuple[float, int]](), 0
    while arrived < len(listed) or any(queues.values()):
        now = min(
            listed[arrived][0] if arrived < len(listed) else math.inf,
            ends[0][0] if ends else math.inf,
        )
        while ends and ends[0][0] <= now:
            free += heapq.heappop(ends)[1]
        while arrived < len(listed) and listed[arrived][0] <= now:
            queues[listed[arrived][2]].append(arrived)
            arrived += 1
        while fitting := [queue for size, queue in queues.items() if queue and size <= free]:
            job = min(fitting, key=lambda queue: queue[0]).popleft()
            _, lasts, size = listed[job]
            starts[job], free = now, free - size
            heapq.heappush(ends, (now + lasts, size))
    return starts


def rows(jobs: Jobs) -> list[tuple[float, float, int]]:
    """Submission, duration and GPUs of each job."""
    columns = (jobs.submit_seconds, jobs.duration_seconds, jobs.num_gpus)
    return list(zip(*(one.tolist() for one in columns), strict=True))


if __name__ == "__main__":
    main()
