"""`ridgeline queue simulate` against exact answers, naive simulators and its own promises."""

from __future__ import annotations

import csv
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline.cli import main
from ridgeline.queue import preempting
from ridgeline.queue.cluster import NodeGroup, QueuedCluster, QueueShare
from ridgeline.queue.jobs import Jobs, jobs_in_order
from ridgeline.queue.machine import ClusterState
from ridgeline.queue.policies import find_policy, policy_names
from ridgeline.queue.pool import NodePool
from ridgeline.queue.simulate import play_queue
from ridgeline.records.queue_simulation import QueueSimulation, SimulatedQueue

TRACES = Path(__file__).parents[3] / "shared" / "data" / "cluster_traces"
NAMES = {"fifo": "fifo", "fifo_skip": "fifo-skip", "easy": "easy", "sjf_skip": "sjf"}
POOLS = {"6c71a0": (48, 64), "103959": (24, 32), "7f04ca": (64, 80)}
"""Virtual clusters of the Philly trace, and the sizes of pool that have exact answers."""
GANGS = [name for name in policy_names() if name != "pod-by-pod"]
"""Policies that start a job whole or not at all."""
NEVER_INTERRUPT = [name for name in policy_names() if not find_policy(name)[0].interrupts]


def simulated(capsys: pytest.CaptureFixture[str], *words: str) -> QueueSimulation:
    assert main.run(["queue", "simulate", *words, "--json"]) == 0
    return msgspec.json.decode(capsys.readouterr().out, type=QueueSimulation)


@pytest.mark.sweep(every=5)
@pytest.mark.parametrize(
    ("trace", "gpus"),
    [(trace, gpus) for trace, pools in POOLS.items() for gpus in pools],
)
def test_philly_s_jobs_wait_as_long_as_the_exact_answers_say(
    capsys: pytest.CaptureFixture[str], trace: str, gpus: int
) -> None:
    if not TRACES.exists():
        pytest.skip("the Philly trace is not here")
    words = [str(TRACES / "philly_jobs.csv"), "--queue", trace, "--gpus", str(gpus)]
    found = {one.policy: one for one in simulated(capsys, *words).policies}
    rows = csv.DictReader((TRACES / "philly_reference_answers.csv").read_text().splitlines())
    answers = [row for row in rows if (row["trace"], row["gpus"]) == (trace, str(gpus))]
    assert len(answers) == 4
    for row in answers:
        one = found[NAMES[row["policy"]]]
        assert figures_of(one) == pytest.approx(
            [float(row[key]) for key in
             ("mean_jct_s", "mean_wait_s", "p50_wait_s", "p99_wait_s", "makespan_s")], abs=0.1
        )  # fmt: skip
        assert one.utilisation == pytest.approx(float(row["utilisation"]), abs=1e-4)


def figures_of(one: SimulatedQueue) -> list[float]:
    return [one.mean_completion_seconds, one.mean_wait_seconds, one.p50_wait_seconds,
            one.p99_wait_seconds, one.makespan_seconds]  # fmt: skip


@st.composite
def traces(draw: st.DrawFn, most: int = 30, largest: int = 20) -> Jobs:
    count = draw(st.integers(1, most))
    whole = st.integers(0, 60)
    return jobs_in_order(
        names=[f"job {place}" for place in range(count)],
        submit_seconds=[float(draw(whole)) for _ in range(count)],
        duration_seconds=[float(draw(whole)) for _ in range(count)],
        num_gpus=[draw(st.integers(1, largest)) for _ in range(count)],
        queues=[draw(st.sampled_from("abc")) for _ in range(count)],
        priority=[draw(st.integers(0, 2)) for _ in range(count)],
    )


CLUSTERS = st.builds(
    QueuedCluster,
    nodes=st.just([NodeGroup(count=2, gpus=8), NodeGroup(count=2, gpus=4)]),
    placement=st.sampled_from(["pack", "spread"]),
    queues=st.just({"a": QueueShare(weight=2.0, quota=12), "b": QueueShare(quota=8)}),
    restart_seconds=st.sampled_from([0.0, 3.0]),
    checkpoint_seconds=st.sampled_from([0.0, 7.0]),
    las_gpu_seconds=st.just(40.0),
) | st.builds(QueuedCluster, gpus=st.integers(20, 40))


@pytest.mark.sweep(every=4)
@pytest.mark.parametrize("policy", GANGS)
@settings(max_examples=60, deadline=None)
@given(jobs=traces(), cluster=CLUSTERS)
def test_no_gpu_is_given_twice_and_every_job_ends(
    policy: str, jobs: Jobs, cluster: QueuedCluster
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(NodePool, "_move", watched_move)
        played = play_queue(jobs, cluster, policy)
    assert (played.busy_gpus <= cluster.num_gpus).all()
    assert (played.busy_gpus >= 0).all()
    assert played.busy_gpus[-1] == played.waiting[-1] == 0
    taken = played.end_seconds - played.first_start_seconds
    least = jobs.duration_seconds + (played.interruptions > 0) * cluster.restart_seconds
    assert (played.first_start_seconds >= jobs.submit_seconds).all()
    assert (taken >= least - 1e-6).all()
    if not find_policy(policy)[0].interrupts:
        assert played.interruptions.sum() == 0
        assert taken == pytest.approx(jobs.duration_seconds)
    # What the GPUs did is the work, and what was lost of it.
    did = float(played.busy_gpus[:-1] @ np.diff(played.moments))
    lost = float(played.lost_seconds @ jobs.num_gpus)
    assert did == pytest.approx(jobs.gpu_seconds + lost, abs=1e-6 * max(1.0, did))


def watched_move(pool: NodePool, node: int, change: int, move: object = NodePool._move) -> None:
    assert 0 <= pool.free_of[node] + change <= pool.sizes[node]
    move(pool, node, change)  # type: ignore[operator]


@pytest.mark.sweep(every=4)
@pytest.mark.parametrize("policy", ["fifo-skip", "sjf", "srtf", "las", "priority", "fair", "quota"])
@settings(max_examples=40, deadline=None)
@given(jobs=traces(), cluster=CLUSTERS)
def test_no_job_waits_that_would_fit(policy: str, jobs: Jobs, cluster: QueuedCluster) -> None:
    rule = find_policy(policy)[1]
    schedule = rule.schedule

    def looked_at(self: object) -> None:
        schedule(self)  # type: ignore[arg-type]
        state: ClusterState = self.state  # type: ignore[attr-defined]
        for job, submitted in enumerate(state.submit):
            ended = state.end[job] <= state.now
            if submitted <= state.now and not ended and job not in state.held:
                assert not state.pool.fits(state.size[job])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rule, "schedule", looked_at)
        play_queue(jobs, cluster, policy)


def naive_starts(jobs: Jobs, gpus: int, *, easy: bool) -> list[float]:
    """Start times by plain lists: in order of arrival with skipping, or EASY backfill."""
    running: list[tuple[float, int, int]] = []
    waiting: list[int] = []
    starts = [-1.0] * len(jobs)
    moments = sorted(set(jobs.submit_seconds.tolist()))
    arrived = 0
    while moments:
        now = moments.pop(0)
        running = [one for one in running if one[0] > now]
        while arrived < len(jobs) and jobs.submit_seconds[arrived] <= now:
            waiting.append(arrived)
            arrived += 1
        free = gpus - sum(one[2] for one in running)
        shadow, spare, blocked = float("inf"), 0, False
        for job in waiting.copy():
            size, length = int(jobs.num_gpus[job]), float(jobs.duration_seconds[job])
            if blocked and easy:
                ends_in_time = now + length <= shadow
                may = size <= free and (ends_in_time or size <= spare)
                spare -= size if may and not ends_in_time else 0
            else:
                may = size <= free
            if may:
                starts[job] = now
                free -= size
                running.append((now + length, job, size))
                waiting.remove(job)
                moments = sorted({*moments, now + length})
            elif not blocked:
                blocked, then = True, free
                for end, _, held in sorted(running):
                    then += held
                    if then >= size:
                        shadow, spare = end, then - size
                        break
    return starts


@settings(max_examples=80, deadline=None)
@given(jobs=traces(most=25), gpus=st.integers(20, 40))
def test_skipping_and_easy_start_jobs_as_a_plain_scan_does(jobs: Jobs, gpus: int) -> None:
    for policy, easy in (("fifo-skip", False), ("easy", True)):
        played = play_queue(jobs, QueuedCluster(gpus=gpus), policy)
        assert played.first_start_seconds.tolist() == naive_starts(jobs, gpus, easy=easy)


@settings(max_examples=100, deadline=None)
@given(jobs=traces(most=25), gpus=st.integers(20, 30))
def test_conservative_backfill_never_delays_an_earlier_job(jobs: Jobs, gpus: int) -> None:
    cluster = QueuedCluster(gpus=gpus)
    starts = play_queue(jobs, cluster, "conservative").first_start_seconds
    for count in range(1, len(jobs)):
        fewer = play_queue(jobs.chosen(range(count)), cluster, "conservative")
        assert starts[:count] == pytest.approx(fewer.first_start_seconds)


@settings(max_examples=100, deadline=None)
@given(jobs=traces(most=12, largest=1))
def test_shortest_remaining_time_first_is_optimal_on_one_gpu(jobs: Jobs) -> None:
    """Schrage 1968: no policy on one machine has a smaller mean completion."""
    means = {
        policy: float((play_queue(jobs, QueuedCluster(gpus=1), policy).end_seconds).mean())
        for policy in policy_names()
    }
    assert means["srtf"] == pytest.approx(min(means.values()))


def test_an_interrupted_job_falls_back_to_its_checkpoint_and_starts_again() -> None:
    jobs = jobs_in_order(
        names=["low", "high"], submit_seconds=[0, 1000], duration_seconds=[3600, 600],
        num_gpus=[8, 8], priority=[0, 1],
    )  # fmt: skip
    cluster = QueuedCluster(gpus=8, restart_seconds=100.0, checkpoint_seconds=300.0)
    played = play_queue(jobs, cluster, "priority")
    # 1,000 s of work fall back to 900; 600 s later it starts again, 100 s after that it goes on.
    assert played.end_seconds.tolist() == [1600 + 100 + 2700, 1600]
    assert played.lost_seconds.tolist() == [200, 0]


def test_a_queue_gets_its_quota_back_from_the_newest_borrower() -> None:
    jobs = jobs_in_order(
        names=["old", "new", "owner"], submit_seconds=[0, 10, 20], duration_seconds=[100] * 3,
        num_gpus=[4, 4, 4], queues=["guest", "guest", "home"],
    )  # fmt: skip
    shares = {"guest": QueueShare(quota=4), "home": QueueShare(quota=4)}
    played = play_queue(jobs, QueuedCluster(gpus=8, queues=shares), "quota")
    assert played.first_start_seconds.tolist() == [0, 10, 20]
    assert played.interruptions.tolist() == [0, 1, 0]


@settings(max_examples=30, deadline=None)
@given(weight=st.integers(1, 5), gpus=st.integers(6, 40))
def test_fair_shares_follow_the_weights_of_queues_that_want_more(weight: int, gpus: int) -> None:
    count = 3 * gpus
    jobs = jobs_in_order(
        names=[str(place) for place in range(2 * count)], submit_seconds=[0] * 2 * count,
        duration_seconds=[100] * 2 * count, num_gpus=[1] * 2 * count,
        queues=["heavy", "light"] * count,
    )  # fmt: skip
    shares = {"heavy": QueueShare(weight=weight), "light": QueueShare(weight=1)}
    played = play_queue(jobs, QueuedCluster(gpus=gpus, queues=shares), "fair")
    first = played.first_start_seconds == 0
    heavy = sum(first[place] for place in range(0, 2 * count, 2))
    assert heavy == pytest.approx(gpus * weight / (weight + 1), abs=1)


def test_jobs_of_failed_nodes_run_again_and_all_of_them_end() -> None:
    count = 200
    jobs = jobs_in_order(
        names=[str(place) for place in range(count)],
        submit_seconds=[60.0 * place for place in range(count)],
        duration_seconds=[7200.0] * count, num_gpus=[1 + place % 16 for place in range(count)],
    )  # fmt: skip
    steady = QueuedCluster(nodes=[NodeGroup(count=8, gpus=8)])
    failing = msgspec.structs.replace(steady, node_mtbf_hours=20.0, checkpoint_seconds=1800.0)
    for policy in GANGS:
        once, broken = (play_queue(jobs, one, policy, seed=1) for one in (steady, failing))
        assert broken.interruptions.sum() > once.interruptions.sum()
        assert np.isfinite(broken.end_seconds).all()
        assert broken.end_seconds.max() > once.end_seconds.max()


@settings(max_examples=40, deadline=None)
@given(jobs=traces(), policy=st.sampled_from(NEVER_INTERRUPT), seed=st.integers(0, 9))
def test_the_order_of_lines_does_not_matter_where_submission_differs(
    jobs: Jobs, policy: str, seed: int
) -> None:
    apart = jobs.submit_seconds + np.arange(len(jobs)) / 64
    order = np.random.default_rng(seed).permutation(len(jobs))
    given = {"names": jobs.names, "submit_seconds": apart, "num_gpus": jobs.num_gpus,
             "duration_seconds": jobs.duration_seconds, "queues": jobs.queues}  # fmt: skip
    shuffled = {key: [value[place] for place in order] for key, value in given.items()}
    ends = [
        play_queue(jobs_in_order(**one), QueuedCluster(gpus=24), policy).end_seconds.tolist()
        for one in (given, shuffled)
    ]
    assert ends[0] == ends[1]


class Forgetful(dict[int, int]):
    """Remembers nobody who tried in vain."""

    def __setitem__(self, size: int, job: int) -> None:
        """Forget at once."""


@settings(max_examples=60)
@given(traces(), CLUSTERS, st.sampled_from(["priority", "srtf", "las"]))
def test_who_is_known_to_try_in_vain_would_have(
    jobs: Jobs, cluster: QueuedCluster, policy: str
) -> None:
    """What policies remember spares them time, and changes nothing."""
    with pytest.MonkeyPatch.context() as patch:
        remembering = play_queue(jobs, cluster, policy)
        patch.setattr(preempting.Preempting, "_reached", lambda *_: None)
        patch.setattr(preempting.Preempting, "_in_reach_of_more", lambda *_: None)
        begun = preempting.Preempting.__init__

        def forget(self: preempting.Preempting, state: ClusterState) -> None:
            begun(self, state)
            self._in_vain = Forgetful()

        patch.setattr(preempting.Preempting, "__init__", forget)
        forgetful = play_queue(jobs, cluster, policy)
    assert remembering.end_seconds.tolist() == forgetful.end_seconds.tolist()
    assert remembering.interruptions.tolist() == forgetful.interruptions.tolist()
