"""How long the simulated queue takes: 10,000 jobs on 1,000 nodes, 100,000 jobs on 10,000 GPUs.

    python bench/queue_speed.py [--large]

Jobs as Philly's: most of one GPU, log-normal durations, demand 1.2 times what the cluster can do.
One core. Prints CPU seconds per policy and the most jobs that waited.
"""

from __future__ import annotations

import sys
import time

import numpy as np

from ridgeline.queue.cluster import NodeGroup, QueuedCluster
from ridgeline.queue.jobs import Jobs, jobs_in_order
from ridgeline.queue.policies import policy_names
from ridgeline.queue.simulate import play_queue

SIZES = {1: 0.6, 2: 0.12, 4: 0.12, 8: 0.1, 16: 0.03, 32: 0.02, 64: 0.01}


def drawn_jobs(count: int, gpus: int, demand: float) -> Jobs:
    """Jobs whose work arrives at `demand` times what the GPUs can do."""
    random = np.random.default_rng(0)
    sizes = random.choice(list(SIZES), count, p=list(SIZES.values()))
    seconds = np.minimum(random.lognormal(8.0, 1.8, count), 30 * 86400.0)
    gap = float((sizes * seconds).mean()) / (gpus * demand)
    return jobs_in_order(
        names=[str(number) for number in range(count)],
        submit_seconds=np.cumsum(random.exponential(gap, count)).tolist(),
        duration_seconds=seconds.tolist(),
        num_gpus=sizes.tolist(),
        queues=[f"queue {number % 5}" for number in range(count)],
        priority=random.integers(0, 3, count).tolist(),
    )


def main() -> None:
    """Time every policy."""
    runs = [(10_000, 1_000, 4.0)]
    if "--large" in sys.argv:
        runs.append((100_000, 1_250, 1.2))
    for count, nodes, demand in runs:
        jobs = drawn_jobs(count, 8 * nodes, demand)
        print(f"{count:,} jobs on {nodes:,} nodes of 8 GPUs, demand {demand:g}")
        for policy in policy_names():
            began = time.process_time()
            played = play_queue(jobs, QueuedCluster(nodes=[NodeGroup(count=nodes, gpus=8)]), policy)
            took = time.process_time() - began
            print(f"  {policy:14} {took:6.1f} s, {int(played.waiting.max()):,} waited", flush=True)


if __name__ == "__main__":
    main()
