"""Waiting jobs that ask for unlike things are looked for on nodes that changed, to the same end."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from unittest import mock

import msgspec
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from ridgeline.queue.cluster import NodeGroup, QueuedCluster
from ridgeline.queue.contended import ContendedNodes
from ridgeline.queue.detailed_pool import DetailedPool
from ridgeline.queue.jobs import jobs_in_order
from ridgeline.queue.offers import OffersBySize
from ridgeline.queue.policies.easy import EasyBackfill
from ridgeline.queue.pool import Asked, GpuPool, Held, ImaginedRoom
from ridgeline.queue.pools import counted_jobs
from ridgeline.queue.shares import QueueShare
from ridgeline.queue.simulate import play_queue, unfit_jobs
from ridgeline.queue.waiting import JobsBySize
from ridgeline.queue.wants import JobWants, Wish

CLUSTER = QueuedCluster(
    nodes=[
        NodeGroup(count=2, gpus=4, gpu_type="h100", cpus=16, memory_gibibytes=64, nodes_per_rack=1),
        NodeGroup(count=3, gpus=4, gpu_type="a100", cpus=12, memory_gibibytes=99, nodes_per_rack=3),
    ],
    node_mtbf_hours=20.0,
    node_repair_hours=1.0,
    restart_seconds=30.0,
    checkpoint_seconds=700.0,
    las_gpu_seconds=2000.0,
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
    WANTS, st.sampled_from("ab"), st.integers(0, 2),
)  # fmt: skip


HALF_BUSY = [
    (8, 40, 2.0, JobWants(), "b", 0),
    (0, 49, 1.0, JobWants(cpus=2.5, level="rack"), "a", 0),
    (6, 18, 1.0, JobWants(cpus=7.0, gpu_type="a100"), "a", 0),
    (20, 36, 3.0, JobWants(), "b", 0),
    (0, 59, 1.0, JobWants(), "a", 0),
    (6, 20, 4.0, JobWants(), "a", 0),
    (0, 26, 3.0, JobWants(gpu_type="h100"), "a", 0),
    (14, 48, 4.0, JobWants(), "a", 0),
    (30, 1, 4.0, JobWants(required=False), "a", 0),
    (19, 56, 2.0, JobWants(), "b", 0),
    (21, 44, 1.0, JobWants(), "a", 0),
    (0, 52, 1.0, JobWants(gpu_type="a100"), "a", 0),
    (0, 44, 1.0, JobWants(cpus=2.5, gpu_type="a100"), "a", 0),
    (5, 38, 1.0, JobWants(gpu_type="a100"), "b", 0),
    (16, 45, 1.0, JobWants(), "a", 0),
]
"""The last GPUs of a node without a core left are the missing ones of a job that asks for none."""

SHARES: list[dict[str, QueueShare]] = [
    {},
    {"a": QueueShare(quota=6, within_queue="lower-or-newer-equal-priority")},
    {"a": QueueShare(strategy="strict-fifo", borrow_within_cohort=True),
     "b": QueueShare(quota=9, reclaim_within_cohort="lower-priority", lending_limit=4)},
]  # fmt: skip


class AskedEachTime:
    """Asks the pool about each waiting job."""

    def __init__(self, pool: DetailedPool, wishes: list[Wish]) -> None:
        self.pool = pool
        self.wishes = list(dict.fromkeys(wishes))

    def add(self, wish: Wish) -> int:
        """The place of what is asked for among all that is."""
        return self.wishes.index(wish)

    def drop(self, wish: Wish) -> None:
        """Keep the row."""

    def marks(self) -> NDArray[np.bool_]:
        """What the pool says of each."""
        return np.array([self.pool.fits(wish) for wish in self.wishes])


def one_after_the_other(
    room: ImaginedRoom, count: int, held: Callable[[int], Held], asked: Asked
) -> int | None:
    """Give back one job more each time, until it is enough."""
    for place in range(count):
        room.change(held(place), 1)
        if room.fits(asked):
            return place + 1
    return None


class NoPool:
    """Stands for the pool that nothing is an instance of."""


def by_size(pool: GpuPool, _: object) -> JobsBySize:
    """Jobs of which the pool is asked about each size."""
    return JobsBySize(pool)


class AskedForShadow(EasyBackfill):
    """Finds out when the head can start by giving back one job more each time."""

    def _fewest_ends(self, asked: Asked) -> int | None:
        ends, held = self._ends, self.state.held
        room = self.state.pool.imagined()
        return one_after_the_other(room, len(ends), lambda place: held[ends[place][1]], asked)


SLOWLY: dict[str, dict[str, object]] = {
    "pod-by-pod": {"policies.pod_by_pod.jobs_waiting_on": by_size},
    "easy": {"policies.easy.HoldingRows": AskedEachTime,
             "policies.easy.EasyBackfill._fewest_ends": AskedForShadow._fewest_ends},
    "quota": {"policies.quota.offers_on": lambda pool, _, strict, __: OffersBySize(pool, strict)},
    **{name: {"policies.fifo_skip.jobs_waiting_on": by_size} for name in ("fifo-skip", "sjf")},
    **{name: {"policies.fair.jobs_waiting_on": by_size} for name in ("drf", "fair")},
    **{name: {"preempting.DetailedPool": NoPool} for name in ("priority", "srtf", "las")},
}  # fmt: skip
"""What does the same by asking for each job, by policy."""


@pytest.mark.sweep(every=5)
@pytest.mark.parametrize("policy", list(SLOWLY))
@settings(max_examples=25, deadline=None)
@given(
    rows=st.lists(ROWS, min_size=2, max_size=40),
    seed=st.integers(0, 3),
    shares=st.sampled_from(SHARES),
)
@example(rows=HALF_BUSY, seed=0, shares={})
def test_asking_changed_nodes_alone_starts_the_same_jobs_at_the_same_times(
    policy: str,
    rows: list[tuple[int, int, float, JobWants, str, int]],
    seed: int,
    shares: dict[str, QueueShare],
) -> None:
    cluster = msgspec.structs.replace(CLUSTER, queues=shares)
    jobs = counted_jobs(
        jobs_in_order(
            names=[str(place) for place in range(len(rows))],
            submit_seconds=[60.0 * row[0] for row in rows],
            duration_seconds=[600.0 * row[1] for row in rows],
            num_gpus=[1 if row[3].gpu_slice else row[2] for row in rows],
            queues=[row[4] for row in rows],
            priority=[row[5] for row in rows],
            wants=[row[3] for row in rows],
        ),
        cluster,
    )
    unfit = set(unfit_jobs(jobs, cluster))
    jobs = jobs.chosen([place for place in range(len(jobs)) if place not in unfit])
    if not len(jobs):
        return
    quick = play_queue(jobs, cluster, policy, seed=seed)
    with ExitStack() as patched:
        for place, slow in SLOWLY[policy].items():
            patched.enter_context(mock.patch(f"ridgeline.queue.{place}", slow))
        one_by_one = play_queue(jobs, cluster, policy, seed=seed)
    assert quick.first_start_seconds.tolist() == one_by_one.first_start_seconds.tolist()
    assert quick.end_seconds.tolist() == one_by_one.end_seconds.tolist()
    assert quick.interruptions.tolist() == one_by_one.interruptions.tolist()


def test_a_gang_looks_for_nodes_again_only_when_as_many_as_it_lacked_have_gained() -> None:
    """Five urgent jobs end one by one; the gang outranks one small job, and lacks three nodes."""
    group = NodeGroup(count=6, gpus=4, cpus=64, nodes_per_rack=6)
    wants = JobWants(cpus=4.0)
    rack = JobWants(cpus=16.0, level="rack")
    rows = [(0.0, 1000.0 * (place + 1), 4, 2, wants) for place in range(5)]
    rows += [(0.0, 9000.0, 1, 0, wants), (10.0, 500.0, 16, 1, rack)]
    jobs = jobs_in_order(
        names=[str(place) for place in range(len(rows))],
        submit_seconds=[row[0] for row in rows],
        duration_seconds=[row[1] for row in rows],
        num_gpus=[row[2] for row in rows],
        priority=[row[3] for row in rows],
        wants=[row[4] for row in rows],
    )
    searched: list[Wish] = []
    search = ContendedNodes.victims

    def counted(nodes: ContendedNodes, wish: Wish, *about: object) -> list[int]:
        searched.append(wish)
        return search(nodes, wish, *about)  # type: ignore[arg-type]

    with mock.patch.object(ContendedNodes, "victims", counted):
        played = play_queue(jobs, QueuedCluster(nodes=[group]), "priority")
    # With the small job's node it has four when the third of the others has ended.
    assert played.first_start_seconds.tolist() == [0.0] * 6 + [3000.0]
    assert [wish.num_full for wish in searched].count(4) == 2
