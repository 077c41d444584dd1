"""Why a run waits: messages as Kueue, the scheduler, the kubelet and Slurm write them."""

from __future__ import annotations

import re
from typing import Any

import pytest

from ridgeline.launch.pending import (
    Clue,
    SeenRun,
    explain,
    table,
    why_pending,
    why_slurm_waits,
)


def pod(**status: Any) -> dict[str, Any]:
    return {"metadata": {"name": "p"}, "status": {"phase": "Pending", **status}}


def unschedulable(message: str) -> dict[str, Any]:
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    return pod(conditions=[condition | {"message": message}])


def workload(message: str, reason: str = "Pending") -> dict[str, Any]:
    condition = {"type": "QuotaReserved", "status": "False", "reason": reason, "message": message}
    return {"metadata": {"name": "w"}, "status": {"conditions": [condition]}}


def waiting(reason: str, message: str = "") -> dict[str, Any]:
    return pod(containerStatuses=[{"state": {"waiting": {"reason": reason, "message": message}}}])


def warning(reason: str, message: str) -> dict[str, Any]:
    return {"type": "Warning", "reason": reason, "message": message}


CASES = [
    (
        SeenRun(workloads=[workload("LocalQueue research doesn't exist")]),
        "queue research does not",
    ),
    (SeenRun(workloads=[workload("ClusterQueue gpus is inactive")]), "gpus takes no work"),
    (
        SeenRun(
            workloads=[
                workload(
                    "couldn't assign flavors to pod set node: insufficient quota for"
                    " nvidia.com/gpu in flavor h100, request > maximum capacity (64 > 32)"
                )
            ]
        ),
        "asks for more than its queue may ever have",
    ),
    (
        SeenRun(
            workloads=[
                workload(
                    "couldn't assign flavors to pod set node: insufficient unused quota for"
                    " nvidia.com/gpu in flavor h100, 8 more needed"
                )
            ]
        ),
        "8 more nvidia.com/gpu are needed in flavor h100",
    ),
    (
        SeenRun(workloads=[workload('topology "racks" allows to fit only 3 out of 4 pod(s)')]),
        "only 3 of 4 pods fit inside one domain of topology racks",
    ),
    (
        SeenRun(
            pods=[
                unschedulable(
                    "0/10 nodes are available: 10 Insufficient nvidia.com/gpu. preemption: 0/10"
                    " nodes are available."
                )
            ]
        ),
        "no node has enough free nvidia.com/gpu",
    ),
    (
        SeenRun(
            pods=[
                unschedulable(
                    "0/3 nodes are available: 3 node(s) had untolerated taint {dedicated: ml}."
                )
            ]
        ),
        "does not stand it: dedicated: ml",
    ),
    (
        SeenRun(pods=[unschedulable('persistentvolumeclaim "ckpt" not found')]),
        "the claim ckpt does not exist",
    ),
    (
        SeenRun(
            pods=[unschedulable("0/2 nodes: 2 node(s) didn't match Pod's node affinity/selector")]
        ),
        "node_selector",
    ),
    (
        SeenRun(pods=[waiting("ImagePullBackOff", "no such image")]),
        "pull the image: no such image",
    ),
    (
        SeenRun(
            events=[
                warning(
                    "FailedCreate",
                    'pods "x" is forbidden: exceeded quota: team, requested:'
                    " requests.nvidia.com/gpu=8, used: requests.nvidia.com/gpu=16, limited:"
                    " requests.nvidia.com/gpu=16",
                )
            ]
        ),
        "quota team is used up",
    ),
    (
        SeenRun(
            events=[warning("FailedCreate", "forbidden: no PriorityClass with name high was found")]
        ),
        "priority class high does not exist",
    ),
    (SeenRun(main={"spec": {"suspend": True}}), "no queue has taken notice"),
    (SeenRun(main={"spec": {}}), "no pods yet"),
]


@pytest.mark.parametrize(("seen", "told"), CASES, ids=[told for _, told in CASES])
def test_the_reason_is_told_in_one_sentence_with_a_cure(seen: SeenRun, told: str) -> None:
    found = why_pending(seen)
    assert told in found.why
    assert found.cure
    assert "\n" not in found.why


def test_the_queue_is_named_before_the_pods_that_it_holds_back() -> None:
    gated = pod(
        conditions=[{"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}]
    )
    seen = SeenRun(
        pods=[gated],
        workloads=[workload("insufficient unused quota for gpu in flavor a, 1 more needed")],
    )
    assert "the queue is full" in why_pending(seen).why


@pytest.mark.parametrize(
    ("reason", "told"),
    [
        ("Priority", "higher priority"),
        ("(Resources)", "it is next"),
        ("ReqNodeNotAvail, UnavailableNodes:node[7-8]", "node[7-8]"),
        ("AssocGrpGRES", "limit (GRES)"),
        ("PartitionTimeLimit", "it will never start"),
        ("BeginTime", "put back into the queue"),
        ("SomethingNew", "Slurm says SomethingNew"),
        ("", "not looked at it yet"),
    ],
)
def test_slurms_reasons_are_told_in_words(reason: str, told: str) -> None:
    assert told in why_slurm_waits(reason).why


def test_every_row_is_a_pattern_whose_groups_it_has() -> None:
    for row in table():
        groups = re.compile(row.match).groups
        used = [int(number) for number in re.findall(r"\{(\d)\}", row.why + row.cure)]
        assert all(1 <= number <= groups for number in used), row
        assert not row.why.endswith(".")


def test_a_source_speaks_only_for_itself() -> None:
    assert explain([Clue(source="gang", text="ImagePullBackOff: x")]) is None
