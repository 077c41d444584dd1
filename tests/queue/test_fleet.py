"""Trees of shares, cohorts, shared GPUs, places, elastic jobs, spot: by definition and by hand."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline.cli import main
from ridgeline.queue.cluster import Network, NodeGroup, QueuedCluster
from ridgeline.queue.jobs import jobs_in_order
from ridgeline.queue.pools import counted_jobs
from ridgeline.queue.share_tree import ShareTree
from ridgeline.queue.shares import CohortShare, QueueShare
from ridgeline.queue.simulate import PlayedQueue, play_queue, unfit_jobs
from ridgeline.queue.wants import JobWants
from ridgeline.records.queue_simulation import QueueSimulation


def progressive_filling(
    capacity: list[float], demands: list[list[float]], weights: list[float]
) -> list[int]:
    """Algorithm 1 of Ghodsi et al., NSDI 2011: tasks per user; who does not fit is out."""
    left, tasks = capacity.copy(), [0] * len(demands)
    open_to = set(range(len(demands)))
    while open_to:
        shares = {
            user: tasks[user] * max(d / c for d, c in zip(demands[user], capacity, strict=True))
            / weights[user]
            for user in open_to
        }  # fmt: skip
        user = min(shares, key=lambda one: (round(shares[one], 9), one))
        if all(d <= free + 1e-9 for d, free in zip(demands[user], left, strict=True)):
            tasks[user] += 1
            left = [free - d for d, free in zip(demands[user], left, strict=True)]
        else:
            open_to.remove(user)
    return tasks


@settings(max_examples=60, deadline=None)
@given(
    demands=st.lists(st.tuples(st.integers(1, 3), st.integers(1, 9), st.integers(1, 9)),
                     min_size=2, max_size=4),
    weights=st.lists(st.sampled_from([1.0, 2.0, 4.0]), min_size=4, max_size=4),
)  # fmt: skip
def test_drf_gives_what_progressive_filling_gives(
    demands: list[tuple[int, int, int]], weights: list[float]
) -> None:
    capacity, each = [16.0, 64.0, 64.0], 16
    jobs = jobs_in_order(
        names=[f"{user}-{job}" for user in range(len(demands)) for job in range(each)],
        submit_seconds=[0.0] * each * len(demands),
        duration_seconds=[100.0] * each * len(demands),
        num_gpus=[demand[0] for demand in demands for _ in range(each)],
        queues=[str(user) for user in range(len(demands)) for _ in range(each)],
        wants=[
            JobWants(cpus=d[1], memory_bytes=d[2] * 2**30) for d in demands for _ in range(each)
        ],
    )
    shares = {str(user): QueueShare(weight=weights[user]) for user in range(len(demands))}
    cluster = QueuedCluster(gpus=16, cpus=64, memory_gibibytes=64, queues=shares)
    first = play_queue(jobs, cluster, "drf").first_start_seconds == 0.0
    ours = [int(first[user * each : (user + 1) * each].sum()) for user in range(len(demands))]
    direct = progressive_filling(capacity, [[float(d) for d in one] for one in demands], weights)
    assert ours == direct


def test_the_example_of_the_paper_on_dominant_resources() -> None:
    tree = ShareTree(["a", "b"], {}, [9.0, 18.0])
    started, left = {"a": 0, "b": 0}, [9.0, 18.0]
    asks = {"a": (1.0, 4.0), "b": (3.0, 1.0)}
    while wanting := {name: (0,) for name, one in asks.items()
                      if all(x <= y for x, y in zip(one, left, strict=True))}:  # fmt: skip
        name = tree.poorest(wanting)
        tree.change(name, asks[name], 1)
        started[name] += 1
        left = [y - x for x, y in zip(asks[name], left, strict=True)]
    assert started == {"a": 3, "b": 2}


def test_a_department_of_many_queues_gets_no_more_than_one_of_one() -> None:
    count = 64
    queues = ["big/1", "big/2", "big/3", "small"]
    jobs = jobs_in_order(
        names=[f"{queue}-{job}" for queue in queues for job in range(count)],
        submit_seconds=[0.0] * 4 * count, duration_seconds=[100.0] * 4 * count,
        num_gpus=[1] * 4 * count, queues=[queue for queue in queues for _ in range(count)],
    )  # fmt: skip
    shares = {"big": QueueShare(), **{name: QueueShare(parent="big") for name in queues[:3]}}
    for policy in ("fair", "drf"):
        played = play_queue(jobs, QueuedCluster(gpus=60, queues=shares), policy)
        first = played.first_start_seconds == 0.0
        assert [int(first[p * count : (p + 1) * count].sum()) for p in range(4)] == [10, 10, 10, 30]


def test_what_a_cohort_lends_is_shared_by_weight_and_taken_back_down_to_that() -> None:
    # a holds all 12 idle GPUs of home when b comes, which weighs twice as much: b gets 8 of them.
    shares = {"home": QueueShare(quota=12), "a": QueueShare(), "b": QueueShare(weight=2.0)}
    rows = [(0.0, 1000.0, "a", 0)] * 12 + [(10.0, 1000.0, "b", 0)] * 12
    jobs = jobs_in_order(
        names=[str(place) for place in range(len(rows))],
        submit_seconds=[row[0] for row in rows],
        duration_seconds=[row[1] for row in rows],
        num_gpus=[1] * len(rows),
        queues=[row[2] for row in rows],
    )
    fair = play_queue(jobs, QueuedCluster(gpus=12, queues=shares, fair_sharing=True), "quota")
    assert fair.first_start_seconds[12:].tolist().count(10.0) == 8
    assert fair.interruptions[:12].sum() == 8
    assert fair.interruptions[12:].sum() == 0
    plain = play_queue(jobs, QueuedCluster(gpus=12, queues=shares), "quota")
    assert plain.interruptions.sum() == 0  # b has no quota that it could ask back


def test_cohorts_share_by_their_weights_before_their_queues_do() -> None:
    # Two cohorts of one root borrow its 12 GPUs: however many queues west has, east gets half.
    cohorts = {name: CohortShare(parent="root") for name in ("west", "east")}
    queues = {
        "w1": QueueShare(cohort="west"),
        "w2": QueueShare(cohort="west"),
        "e": QueueShare(cohort="east"),
    }
    names = ["w1"] * 6 + ["w2"] * 6 + ["e"] * 12
    jobs = jobs_in_order(
        names=[str(place) for place in range(len(names))],
        submit_seconds=[0.0] * 12 + [5.0] * 12,
        duration_seconds=[1000.0] * len(names),
        num_gpus=[1] * len(names),
        queues=names,
    )
    cluster = QueuedCluster(
        gpus=12,
        queues=queues,
        cohorts={"root": CohortShare(quota=12), **cohorts},
        fair_sharing=True,
    )
    played = play_queue(jobs, cluster, "quota")
    assert played.first_start_seconds[12:].tolist().count(5.0) == 6
    assert played.interruptions[:6].sum() == played.interruptions[6:12].sum() == 3


@settings(max_examples=40, deadline=None)
@given(
    rows=st.lists(
        st.tuples(st.integers(0, 9), st.integers(1, 40), st.integers(1, 4), st.sampled_from("abc"),
                  st.integers(0, 2)), min_size=1, max_size=30),
    quotas=st.tuples(st.integers(0, 4), st.integers(0, 4), st.integers(0, 4)),
    within=st.sampled_from(["never", "lower-priority", "lower-or-newer-equal-priority"]),
)  # fmt: skip
def test_fair_sharing_ends_every_job_and_gives_no_gpu_twice(
    rows: list[tuple[int, int, int, str, int]], quotas: tuple[int, int, int], within: str
) -> None:
    jobs = jobs_in_order(
        names=[str(place) for place in range(len(rows))],
        submit_seconds=[row[0] for row in rows],
        duration_seconds=[row[1] for row in rows],
        num_gpus=[row[2] for row in rows],
        queues=[row[3] for row in rows],
        priority=[row[4] for row in rows],
    )
    shares = {
        name: msgspec.convert({"quota": quota, "within_queue": within, "weight": 1.0 + quota},
                              QueueShare)
        for name, quota in zip("abc", quotas, strict=True)
    }  # fmt: skip
    cluster = QueuedCluster(
        nodes=[NodeGroup(count=3, gpus=4)], queues=shares, fair_sharing=True, restart_seconds=1.0
    )
    played = play_queue(jobs, cluster, "quota")
    assert np.isfinite(played.end_seconds).all()
    assert played.busy_gpus.max() <= 12


def quota_played(shares: dict[str, QueueShare], rows: list[tuple[float, int, str, int]],
                 gpus: int = 16) -> PlayedQueue:  # fmt: skip
    jobs = jobs_in_order(
        names=[str(place) for place in range(len(rows))],
        submit_seconds=[row[0] for row in rows], duration_seconds=[100.0] * len(rows),
        num_gpus=[row[1] for row in rows], queues=[row[2] for row in rows],
        priority=[row[3] for row in rows],
    )  # fmt: skip
    return play_queue(jobs, QueuedCluster(gpus=gpus, queues=shares), "quota")


@pytest.mark.parametrize(
    ("guest", "home", "starts"),
    [
        # guest asks for 4 twice with a quota of 4; home has 12 and asks for all of them at 10 s.
        ({}, {}, [0, 0, 10]),
        ({"borrowing_limit": 0}, {}, [0, 100, 10]),
        ({}, {"lending_limit": 0}, [0, 100, 10]),
        ({}, {"lending_limit": 3}, [0, 100, 10]),
        ({}, {"lending_limit": 4}, [0, 0, 10]),
        ({}, {"reclaim_within_cohort": "never"}, [0, 0, 100]),
        ({}, {"reclaim_within_cohort": "lower-priority"}, [0, 0, 100]),
        ({}, {"cohort": "other"}, [0, 100, 10]),
    ],
)
def test_lending_borrowing_and_reclaim_are_kueue_s(
    guest: dict[str, object], home: dict[str, object], starts: list[float]
) -> None:
    shares = {
        "guest": msgspec.convert({"quota": 4, **guest}, QueueShare),
        "home": msgspec.convert({"quota": 12, **home}, QueueShare),
    }
    rows = [(0.0, 4, "guest", 0), (0.0, 4, "guest", 0), (10.0, 12, "home", 0)]
    assert quota_played(shares, rows).first_start_seconds.tolist() == starts


def test_gangs_of_pods_wait_for_each_other_for_good_and_a_timeout_frees_them() -> None:
    jobs = jobs_in_order(
        names=["a", "b"], submit_seconds=[0, 0], duration_seconds=[100, 100], num_gpus=[12, 12],
        wants=[JobWants(pods=3)] * 2,
    )  # fmt: skip
    nodes = [NodeGroup(count=4, gpus=4)]
    stuck = play_queue(jobs, QueuedCluster(nodes=nodes), "pod-by-pod")
    assert not (stuck.end_seconds < float("inf")).any()
    assert stuck.busy_gpus[-1] == 16
    freed = QueuedCluster(nodes=nodes, gang_timeout_seconds=60)
    assert play_queue(jobs, freed, "pod-by-pod").end_seconds.tolist() == [160, 260]
    assert play_queue(jobs, QueuedCluster(nodes=nodes), "fifo").end_seconds.tolist() == [100, 200]


@settings(max_examples=40, deadline=None)
@given(profiles=st.lists(st.sampled_from(["1g.10gb", "2g.20gb", "3g.40gb", "7g.80gb"]),
                         min_size=1, max_size=30))  # fmt: skip
def test_mig_instances_never_take_more_than_the_gpus_have(profiles: list[str]) -> None:
    jobs = jobs_in_order(
        names=[str(place) for place in range(len(profiles))],
        submit_seconds=[float(place) for place in range(len(profiles))],
        duration_seconds=[50.0] * len(profiles), num_gpus=[1] * len(profiles),
        wants=[JobWants(gpu_slice=one) for one in profiles],
    )  # fmt: skip
    cluster = QueuedCluster(nodes=[NodeGroup(count=1, gpus=2, gpu_type="a100-sxm-80gb")])
    played = play_queue(counted_jobs(jobs, cluster), cluster, "fifo-skip")
    assert (played.busy_gpus <= 2).all()
    assert played.busy_gpus[-1] == 0
    if profiles.count("3g.40gb") == len(profiles):
        assert sum(played.first_start_seconds < 50) <= 4


def test_time_slices_are_turns_and_fractions_are_not() -> None:
    jobs = jobs_in_order(
        names=["a", "b"], submit_seconds=[0, 0], duration_seconds=[100, 100], num_gpus=[0.5, 0.5]
    )
    ends = {
        how: play_queue(
            jobs, QueuedCluster(gpus=1, sharing=how, sharing_loss=0.0), "fifo"
        ).end_seconds.tolist()
        for how in ("fraction", "time-slicing", "mps")
    }
    assert ends == {"fraction": [100, 100], "time-slicing": [200, 200], "mps": [100, 100]}


def test_a_rack_is_waited_for_where_required_and_lying_apart_costs_where_preferred() -> None:
    nodes = [NodeGroup(count=4, gpus=8, nodes_per_rack=2)]
    net = Network(device="h100", rack_oversubscription=4.0)
    for required, spread in ((True, False), (False, True)):
        wants = JobWants(level="rack", required=required, comm_share=0.5)
        jobs = jobs_in_order(
            names=["x", "y", "gang"], submit_seconds=[0, 0, 1], duration_seconds=[100, 200, 100],
            num_gpus=[8, 24, 16], wants=[JobWants(), JobWants(), wants],
        )  # fmt: skip
        assert not unfit_jobs(jobs, QueuedCluster(nodes=nodes, network=net))
        first = jobs.chosen([0, 2])
        played = play_queue(first, QueuedCluster(nodes=nodes, network=net), "fifo")
        assert played.end_seconds[1] == pytest.approx(101.0)  # a whole rack is free
        blocked = jobs_in_order(
            names=["p", "q", "gang"], submit_seconds=[0, 0, 1], duration_seconds=[300, 100, 100],
            num_gpus=[8, 16, 16], wants=[JobWants(), JobWants(), wants],
        )  # fmt: skip
        ends = play_queue(blocked, QueuedCluster(nodes=nodes, network=net), "fifo").end_seconds
        assert ends[2] >= 200 if spread else ends[2] == pytest.approx(200.0)


def test_an_elastic_job_grows_into_what_is_idle_and_gives_it_back() -> None:
    jobs = jobs_in_order(
        names=["elastic", "rigid"], submit_seconds=[0, 10], duration_seconds=[100, 20],
        num_gpus=[4, 4], wants=[JobWants(min_gpus=2, max_gpus=8), JobWants()],
    )  # fmt: skip
    played = play_queue(jobs, QueuedCluster(gpus=8), "fifo")
    # 10 s at 8 GPUs are 20 s of its time at 4; 20 s at 4 are 20; 60 s are left, at 8: 30.
    assert played.first_start_seconds.tolist() == [0, 10]
    assert played.end_seconds.tolist() == pytest.approx([60, 30])


def test_spot_mixes_and_odd_traces_are_answered(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "jobs.csv").write_text(
        "state;GPU Num;submit_time;start_time;end_time;vc\n"
        "done;8;2026-01-05 10:00:00;2026-01-05 10:00:00;2026-01-05 12:00:00;a\n"
        "done;0;2026-01-05 10:00:00;2026-01-05 10:00:00;2026-01-05 12:00:00;a\n"
        "live;8;2026-01-05 10:00:00;2026-01-05 10:00:00;;b\n"
        "done;8;2026-01-05T10:30:00Z;2026-01-05 11:00:00;2026-01-05 12:00:00;b\n"
    )
    (tmp_path / "c.toml").write_text(
        "gpu_hour_price = 2.0\n[[nodes]]\ncount = 2\ngpus = 8\n[spot_offer]\n"
        "interruptions_per_hour = 0.0\ngpu_hour_price = 1.0\n"
    )
    words = [str(tmp_path / "jobs.csv"), "--cluster", str(tmp_path / "c.toml"), "--spot-mix"]
    assert main.run(["queue", "simulate", *words, "--policy", "fifo", "--json"]) == 0
    found = msgspec.json.decode(capsys.readouterr().out, type=QueueSimulation)
    assert found.jobs == 2
    assert [round(one.cost_usd, 6) for one in found.mixes] == [64.0, 64.0, 48.0, 32.0, 32.0]
    assert found.notes[-1] == "Columns that nothing here heeds: state."


def test_sacct_with_arrays_components_and_clocks(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "sacct.txt"
    path.write_text(
        "JobID|Submit|Elapsed|State|NNodes|AllocGRES|\n"
        "7_1|2026-01-05T10:00:00|1-00:00:01|COMPLETED|2|gpu:a100:4|\n"
        "7_1.batch|2026-01-05T10:00:00|1-00:00:01|COMPLETED|1|gpu:a100:4|\n"
        "7_[2-9]|2026-01-05T10:00:00|00:00:00|PENDING|1|gpu:4|\n"
        "8+0|2026-01-05T10:00:01|00:10:00|NODE_FAIL|1|gpu:8|\n"
        "8+1|2026-01-05T10:00:01|00:09:00|NODE_FAIL|1|gpu:4|\n"
    )
    assert main.run(["queue", "simulate", str(path), "--gpus", "32", "--json"]) == 0
    found = msgspec.json.decode(capsys.readouterr().out, type=QueueSimulation)
    assert (found.jobs, [one.group for one in found.policies[0].by_size]) == (2, ["5-8", "9-16"])


@pytest.mark.parametrize("policy", ["srtf", "las", "priority"])
def test_jobs_that_slow_each_other_down_do_not_interrupt_each_other_without_end(
    policy: str,
) -> None:
    """By ends that sharers make later, the last two would take turns at one moment for ever."""
    jobs = jobs_in_order(
        names=list("abcd"), submit_seconds=[4, 18, 27, 25], duration_seconds=[147, 58, 82, 65],
        num_gpus=[0.5, 0.5, 0.5, 1], priority=[0, 1, 1, 2],
    )  # fmt: skip
    cluster = QueuedCluster(
        nodes=[NodeGroup(count=1, gpus=2)], sharing="time-slicing", restart_seconds=5.0
    )
    played = play_queue(jobs, cluster, policy)
    assert (played.end_seconds < 1000).all()
    assert played.interruptions.sum() <= 4


@settings(max_examples=15, deadline=None)
@given(st.lists(
    st.tuples(st.integers(0, 60), st.integers(20, 200), st.sampled_from([0.5, 1.0, 2.0, 16.0])),
    min_size=2, max_size=12,
))  # fmt: skip
def test_shortest_remaining_first_ends_whatever_the_speeds(
    asked: list[tuple[int, int, float]],
) -> None:
    jobs = jobs_in_order(
        names=[str(one) for one in range(len(asked))],
        submit_seconds=[one for one, _, _ in asked],
        duration_seconds=[one for _, one, _ in asked],
        num_gpus=[one for _, _, one in asked],
        wants=[JobWants(comm_share=0.5, level="rack", required=False) for _ in asked],
    )
    cluster = QueuedCluster(
        nodes=[NodeGroup(count=4, gpus=8, gpu_type="h100", nodes_per_rack=2)], sharing="mps",
        network=Network(device="h100", rack_oversubscription=8.0), restart_seconds=7.0,
        checkpoint_seconds=30.0,
    )  # fmt: skip
    played = play_queue(jobs, cluster, "srtf")
    assert np.isfinite(played.end_seconds).all()
    assert played.interruptions.sum() <= len(asked) ** 2
