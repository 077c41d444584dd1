"""How long the simulated queue takes: 10,000 jobs on 1,000 nodes, 100,000 jobs on 10,000 GPUs.

    python bench/queue_speed.py [--large] [--detailed] [--placement RULE]

Jobs as Philly's: most of one GPU, log-normal durations, demand 1.2 times what the cluster can do.
With `--detailed` also 10,000 jobs on 1,000 nodes that are told apart: jobs ask for cores and memory
(so that hardly two ask for the same), some for a MIG instance, half a GPU, one kind of GPU, a rack,
or nodes that are no spot capacity. `--placement` puts the first jobs on nodes by another rule.

One core. Prints CPU seconds per policy and the most jobs that waited.
"""

from __future__ import annotations

import sys
import time
from dataclasses import replace

import numpy as np

from ridgeline.queue.cluster import NodeGroup, QueuedCluster, SpotTerms
from ridgeline.queue.jobs import Jobs, jobs_in_order
from ridgeline.queue.policies import policy_names
from ridgeline.queue.pools import counted_jobs
from ridgeline.queue.simulate import play_queue
from ridgeline.queue.wants import JobWants

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


def told_apart(jobs: Jobs) -> Jobs:
    """The jobs with wishes of their own."""
    random = np.random.default_rng(1)
    wants, sizes = [], jobs.num_gpus.astype(float)
    for place, gpus in enumerate(jobs.num_gpus.tolist()):
        chance = random.random()
        split = gpus == 1 and chance < 0.1
        wants.append(
            JobWants(
                cpus=float(gpus * random.integers(2, 16)),
                memory_bytes=float(gpus * random.integers(8, 120)) * 2**30,
                gpu_slice="1g.10gb" if split else "",
                gpu_type="h100" if split or chance > 0.9 else "",
                on_demand=0.3 < chance < 0.6,
                level="rack" if gpus > 8 and chance < 0.7 else "node",
                required=chance < 0.5,
            )
        )
        if gpus == 1 and 0.1 <= chance < 0.25:
            sizes[place] = 0.5
    return replace(jobs, num_gpus=sizes, wants=tuple(wants))


def cluster_of_kinds() -> QueuedCluster:
    """A thousand nodes of two kinds, of which a tenth may be taken away."""
    groups = [("h100", 600, None), ("a100", 300, None),
              ("h100", 100, SpotTerms(interruptions_per_hour=0.001))]  # fmt: skip
    return QueuedCluster(
        nodes=[
            NodeGroup(count=count, gpus=8, gpu_type=kind, cpus=128, memory_gibibytes=1024,
                      nodes_per_rack=8, spot=spot)
            for kind, count, spot in groups
        ]
    )  # fmt: skip


def time_policies(jobs: Jobs, cluster: QueuedCluster) -> None:
    """Print the CPU seconds of every policy."""
    for policy in policy_names():
        began = time.process_time()
        played = play_queue(jobs, cluster, policy)
        took = time.process_time() - began
        print(f"  {policy:14} {took:6.1f} s, {int(played.waiting.max()):,} waited", flush=True)


def main() -> None:
    """Time every policy."""
    runs = [(10_000, 1_000, 4.0)]
    placement = "pack"
    if "--placement" in sys.argv:
        placement = sys.argv[sys.argv.index("--placement") + 1]
    if "--large" in sys.argv:
        runs.append((100_000, 1_250, 1.2))
    for count, nodes, demand in runs:
        jobs = drawn_jobs(count, 8 * nodes, demand)
        print(f"{count:,} jobs on {nodes:,} nodes of 8 GPUs, demand {demand:g}")
        groups = [NodeGroup(count=nodes, gpus=8)]
        time_policies(jobs, QueuedCluster(nodes=groups, placement=placement))
    if "--detailed" in sys.argv:
        cluster = cluster_of_kinds()
        for demand in (1.2, 4.0):
            print(f"10,000 jobs on 1,000 nodes that are told apart, demand {demand:g}")
            jobs = told_apart(drawn_jobs(10_000, 8_000, demand))
            time_policies(counted_jobs(jobs, cluster), cluster)


if __name__ == "__main__":
    main()
