"""Waiting jobs that ask for unlike things are looked for on nodes that changed, to the same end."""

from __future__ import annotations

from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline.queue.cluster import NodeGroup, QueuedCluster
from ridgeline.queue.first_fitting import JobsBySize
from ridgeline.queue.jobs import jobs_in_order
from ridgeline.queue.pools import counted_jobs
from ridgeline.queue.simulate import play_queue, unfit_jobs
from ridgeline.queue.wants import JobWants

CLUSTER = QueuedCluster(
    nodes=[
        NodeGroup(count=2, gpus=4, gpu_type="h100", cpus=16, memory_gibibytes=64, nodes_per_rack=1),
        NodeGroup(count=3, gpus=4, gpu_type="a100", cpus=12, memory_gibibytes=99, nodes_per_rack=3),
    ],
    node_mtbf_hours=20.0,
    node_repair_hours=1.0,
)
WANTS = st.builds(
    JobWants,
    cpus=st.sampled_from([0.0, 1.0, 2.5, 4.001, 7.0]),
    memory_bytes=st.sampled_from([0.0, 5e9, 3e10]),
    gpu_type=st.sampled_from(["", "", "h100", "a100"]),
    gpu_slice=st.sampled_from(["", "", "", "1g.10gb", "3g.40gb"]),
    level=st.sampled_from(["node", "node", "rack"]),
    required=st.booleans(),
)
ROWS = st.tuples(
    st.integers(0, 30), st.integers(1, 60), st.sampled_from([0.25, 0.5, 1, 1, 2, 3, 4, 6, 9]),
    WANTS, st.sampled_from("ab"),
)  # fmt: skip


@pytest.mark.parametrize("policy", ["fifo-skip", "drf"])
@settings(max_examples=25, deadline=None)
@given(rows=st.lists(ROWS, min_size=2, max_size=40), seed=st.integers(0, 3))
def test_asking_changed_nodes_alone_starts_the_same_jobs_at_the_same_times(
    policy: str, rows: list[tuple[int, int, float, JobWants, str]], seed: int
) -> None:
    jobs = counted_jobs(
        jobs_in_order(
            names=[str(place) for place in range(len(rows))],
            submit_seconds=[60.0 * row[0] for row in rows],
            duration_seconds=[600.0 * row[1] for row in rows],
            num_gpus=[1 if row[3].gpu_slice else row[2] for row in rows],
            queues=[row[4] for row in rows],
            wants=[row[3] for row in rows],
        ),
        CLUSTER,
    )
    unfit = set(unfit_jobs(jobs, CLUSTER))
    jobs = jobs.chosen([place for place in range(len(jobs)) if place not in unfit])
    if not len(jobs):
        return
    quick = play_queue(jobs, CLUSTER, policy, seed=seed)
    module = "tree_order" if policy == "drf" else "in_order"
    with mock.patch(f"ridgeline.queue.{module}.jobs_waiting_on", JobsBySize):
        one_by_one = play_queue(jobs, CLUSTER, policy, seed=seed)
    assert quick.first_start_seconds.tolist() == one_by_one.first_start_seconds.tolist()
    assert quick.end_seconds.tolist() == one_by_one.end_seconds.tolist()
