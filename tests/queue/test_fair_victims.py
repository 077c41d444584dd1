"""Kueue's own table of fair-sharing preemptions, played: who is interrupted for whom.

The cases are `TestFairPreemptions` of kubernetes-sigs/kueue,
`pkg/scheduler/preemption/preemption_fair_test.go` at 054bf634, a core there being two GPUs here.
Left out are one of two flavors, and one that turns LessThanOrEqualToFinalShare off.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import pytest

from ridgeline.errors import InputError
from ridgeline.queue.cluster import QueuedCluster
from ridgeline.queue.jobs import jobs_in_order
from ridgeline.queue.shares import CohortShare, QueueShare
from ridgeline.queue.simulate import play_queue

GPUS_A_CORE = 2


class Case(NamedTuple):
    """Running jobs as `name cores` or `name cores priority`, of the queue of the first letters."""

    running: str
    queue: str
    cores: float
    preempted: str
    tree: str = "equal"
    priority: int = 0


def queue(
    cores: float, cohort: str = "", weight: float = 1.0, *, within: bool = False
) -> QueueShare:
    return QueueShare(
        quota=round(cores * GPUS_A_CORE), cohort=cohort, weight=weight,
        within_queue="lower-priority" if within else "never",
    )  # fmt: skip


def cohort(cores: float = 0, parent: str = "", weight: float = 1.0) -> CohortShare:
    return CohortShare(quota=round(cores * GPUS_A_CORE), parent=parent, weight=weight)


def three(**weights: float) -> dict[str, QueueShare]:
    return {name: queue(3, "all", weights.get(name, 1.0), within=True) for name in "abc"}


PROTECTED = {"a": queue(5, "ROOT", 10.0, within=True), "b": queue(0, "RIGHT", 0.1)}
TREES: dict[str, tuple[dict[str, QueueShare], dict[str, CohortShare]]] = {
    "equal": ({**three(), "p": queue(0, "all")}, {}),
    "a weighs 2": (three(a=2.0), {}),
    "b weighs 0": (three(b=0.0), {}),
    "b of two weighs 0": ({name: one for name, one in three(b=0.0).items() if name != "c"}, {}),
    "right weighs 0": (
        {"l": queue(0, "root"), "r": queue(0, "right", 0.0)},
        {"right": cohort(1, "root", 0.0), "root": cohort()},
    ),
    "alone": ({"a": queue(1, within=True)}, {}),
    "two sides": (
        {"a": queue(1, "LEFT", 2.0), "b": queue(1, "LEFT"), "c": queue(1, "ROOT"),
         "d": queue(1, "RIGHT"), "e": queue(1, "RIGHT", 0.99)},
        {"ROOT": cohort(5), "LEFT": cohort(5, "ROOT", 2.0), "RIGHT": cohort(5, "ROOT")},
    ),
    "right has 1": (PROTECTED, {"ROOT": cohort(), "RIGHT": cohort(1, "ROOT", 0.1)}),
    "right has 3": (
        {**PROTECTED, "a": QueueShare(
            quota=10, cohort="ROOT", weight=10.0, within_queue="lower-priority",
            reclaim_within_cohort="lower-priority")},
        {"ROOT": cohort(), "RIGHT": cohort(3, "ROOT", 0.1)},
    ),
    "deep": (
        {"a": queue(0, "AAA"), "b": queue(0, "BBB")},
        {"ROOT": cohort(), "A": cohort(0, "ROOT", 1.01), "AA": cohort(0, "A"),
         "AAA": cohort(0, "AA"), "B": cohort(0, "ROOT", 0.99), "BB": cohort(0, "B"),
         "BBB": cohort(0, "BB"), "C": cohort(0, "ROOT"), "CC": cohort(0, "C"),
         "CCC": cohort(0, "CC"), "CCCC": cohort(1, "CCC")},
    ),
    "a weighs nothing": ({"a": queue(1, "ROOT", 0.0), "b": queue(0, "ROOT")}, {}),
    "A weighs nothing": (
        {"a": queue(0, "A", 0.0), "b": queue(0, "ROOT")},
        {"A": cohort(1, "ROOT", 0.0), "ROOT": cohort()},
    ),
}  # fmt: skip
A3 = "a1 1, a2 1, a3 1, "
B3 = "b1 1, b2 1, b3 1"
B5, B6 = f"{B3}, b4 1, b5 1", f"{B3}, b4 1, b5 1, b6 1"
FIVE_EACH = ", ".join(f"{one}{place} 1 {place}" for one in "bcde" for place in range(1, 6))
CASES = {
    "reclaim nominal from user using the most": Case(f"{A3}{B5}, c1 1", "c", 1, "b1"),
    "can reclaim from queue using less": Case("a1 3, a2 1, b1 2, b2 3", "c", 3, "a1"),
    "reclaim borrowable quota from user using the most": Case(f"{A3}{B5}, c1 1", "a", 1, "b1"),
    "preempt one from each CQ borrowing": Case(
        "a1 0.5, a2 0.5, a3 3, b1 0.5, b2 0.5, b3 3", "c", 2, "a1 b1"
    ),
    "can't preempt when everyone under nominal": Case(f"{A3}{B3}, c1 1, c2 1, c3 1", "c", 1, ""),
    "can't preempt when it would switch the imbalance": Case(f"{A3}{B5}", "a", 2, ""),
    "can preempt lower priority workloads from same CQ": Case(
        f"al1 1 -1, al2 1 -1, a3 1, a4 1, {B5}", "a", 2, "al1 al2"
    ),
    "can preempt a combination of same CQ and highest user": Case(
        f"al 1 -1, a2 1, a3 1, {B6}", "a", 2, "al b1"
    ),
    "preempt huge workload if there is no other option": Case("b1 9", "a", 2, "b1"),
    "can't preempt huge workload if the incoming is also huge": Case("a1 2, b1 7", "a", 5, ""),
    "can't preempt 2 smaller workloads if the incoming is huge": Case(
        "b1 2, b2 2, b3 3", "a", 6, ""
    ),
    "preempt from target and others even if over nominal": Case(
        "al1 2 -1, al2 1 -1, b1 3, b2 3", "a", 4, "al1 b1"
    ),
    "prefer workloads that don't make the target CQ have the biggest share": Case(
        "b1 2, b2 1, b3 2, c1 1", "a", 3.5, "b2"
    ),
    "preempt from different cluster queues": Case("b1 2, b2 2.5, c1 2, c2 2.5", "a", 3.5, "b1 c1"),
    "scenario above does not flap": Case("a1 3.5, b2 2.5, c2 2.5", "b", 2, ""),
    "cannot preempt if it would make the candidate CQ go under nominal": Case(
        "b1 3, b2 3, c1 3", "a", 4, ""
    ),
    "workloads under priority threshold not capriciously preempted": Case(
        f"{A3}{B3}, p1 1 -3, p2 1 -3, p3 1 -3", "a", 2, ""
    ),
    "preempt workload that doesn't transfer the imbalance": Case(
        "a1 3, blow 5 0, bhigh 1 1", "a", 1, "bhigh"
    ),
    "CQ with higher weight can preempt more": Case(f"{A3}{B6}", "a", 2, "b1 b2", "a weighs 2"),
    "can preempt anything borrowing from CQ with 0 weight": Case(
        f"{A3}{B6}", "a", 3, "b1 b2 b3", "b weighs 0"
    ),
    "can't preempt nominal from CQ with 0 weight": Case(
        f"{A3}{B3}", "a", 1, "", "b of two weighs 0"
    ),
    "can't preempt nominal from Cohort with 0 weight": Case("r1 1", "l", 1, "", "right weighs 0"),
    "can preempt within cluster queue when no cohort": Case("a1 1", "a", 1, "a1", "alone", 1000),
    "hierarchical preemption": Case(FIVE_EACH, "a", 5, "b1 b2 c1 c2 e1", "two sides"),
    "borrowing cq in non-borrowing cohort is protected": Case(
        "a1 1 -1, a2 1 -1, a3 1 -1, b1 1 -1", "a", 5, "a1 a2 a3", "right has 1"
    ),
    "forced to preempt within clusterqueue": Case(
        "a1 1 -1, a2 1 -1, a3 1 -1, b1 4 100", "a", 4, "a1 a2 a3", "right has 3"
    ),
    "deep preemption": Case("b1 1", "a", 1, "b1", "deep"),
    "cq with zero weight can reclaim nominal quota": Case("b1 1", "a", 1, "b1", "a weighs nothing"),
    "cohort with zero weight can reclaim nominal quota": Case(
        "b1 1", "a", 1, "b1", "A weighs nothing"
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_fair_sharing_interrupts_whom_kueue_does(name: str) -> None:
    case = CASES[name]
    queues, cohorts = TREES[case.tree]
    # Of equals Kueue takes the first by name, and we the last of the file.
    rows = [one.split() for one in sorted(case.running.split(", "), reverse=True)]
    jobs = jobs_in_order(
        names=[*(row[0] for row in rows), "incoming"],
        submit_seconds=[*(0.0 for _ in rows), 10.0],
        duration_seconds=[1000.0] * (len(rows) + 1),
        num_gpus=[GPUS_A_CORE * float(cores) for cores in (*(row[1] for row in rows), case.cores)],
        queues=[*(row[0][0] for row in rows), case.queue],
        priority=[*(int(row[2]) if len(row) > 2 else 0 for row in rows), case.priority],
    )
    gpus = sum(one.quota for one in (*queues.values(), *cohorts.values()))
    cluster = QueuedCluster(gpus=gpus, queues=queues, cohorts=cohorts, fair_sharing=True)
    played = play_queue(jobs, cluster, "quota")
    hit = {job for job, times in zip(jobs.names, played.interruptions, strict=True) if times}
    assert hit == set(case.preempted.split())
    assert (played.first_start_seconds[-1] == 10.0) == bool(case.preempted)


def test_a_queue_of_no_weight_is_refused_where_shares_are_divided_by_weights() -> None:
    jobs = jobs_in_order(
        names=["one"], submit_seconds=[0], duration_seconds=[1], num_gpus=[1], queues=["a"]
    )
    cluster = QueuedCluster(gpus=2, queues={"a": queue(1, weight=0.0)}, fair_sharing=True)
    with pytest.raises(InputError, match=re.escape("queues.a: weight 0")):
        play_queue(jobs, cluster, "fair")
