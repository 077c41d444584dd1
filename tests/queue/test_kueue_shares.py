"""Kueue's objects as a cluster's quotas: flavors in their order, and what is refused by name.

What is expected is what Kueue's documentation says ("Cluster Queue": Flavors and borrowing
semantics, FlavorFungibility; "Resource Flavor").
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ridgeline.cli import main
from ridgeline.queue.fitting import fitting_jobs
from ridgeline.queue.jobs import jobs_in_order
from ridgeline.queue.readers.cluster_nodes import read_cluster
from ridgeline.queue.simulate import play_queue
from ridgeline.queue.wants import JobWants

PRODUCT = "nvidia.com/gpu.product"


def node(name: str, kind: str) -> dict[str, Any]:
    amounts = {"nvidia.com/gpu": "8", "cpu": "64", "memory": "512Gi"}
    return {"kind": "Node", "metadata": {"name": name, "labels": {PRODUCT: kind}},
            "status": {"allocatable": amounts}}  # fmt: skip


def flavor(name: str, **spec: Any) -> dict[str, Any]:
    return {"kind": "ResourceFlavor", "metadata": {"name": name},
            "spec": {"nodeLabels": {PRODUCT: name.upper()}, **spec}}  # fmt: skip


def queue(name: str, quotas: dict[str, Any], *, cpu: str = "999", **spec: Any) -> dict[str, Any]:
    flavors = [
        {"name": kind, "resources": [{"name": "cpu", "nominalQuota": cpu},
                                     {"name": "nvidia.com/gpu", "nominalQuota": quota, **limits}]}
        for kind, (quota, limits) in quotas.items()
    ]  # fmt: skip
    group = {"coveredResources": ["cpu", "nvidia.com/gpu"], "flavors": flavors}
    return {"kind": "ClusterQueue", "metadata": {"name": name},
            "spec": {"cohortName": "all", "resourceGroups": [group], **spec}}  # fmt: skip


def local(name: str, cluster_queue: str, namespace: str = "team") -> dict[str, Any]:
    return {"kind": "LocalQueue", "metadata": {"name": name, "namespace": namespace},
            "spec": {"clusterQueue": cluster_queue}}  # fmt: skip


NODES = [node("n1", "H100"), node("n2", "H100"), node("n3", "A100")]
FLAVORS = [flavor("h100"), flavor("a100")]
BOTH: dict[str, Any] = {"h100": (8, {}), "a100": (8, {})}
NEVER = {"preemption": {"reclaimWithinCohort": "Never"}}


def starts(
    folder: Path,
    objects: list[dict[str, Any]],
    rows: list[tuple[float, int, str, int, str]],
    wants: JobWants = JobWants(),  # noqa: B008
) -> tuple[list[float], list[int]]:
    """When each job first starts, and how often it is interrupted."""
    path = folder / "cluster.json"
    path.write_text(json.dumps({"items": [*NODES, *objects, local("mine", "a")]}))
    cluster = read_cluster(path)
    jobs = jobs_in_order(
        names=[str(place) for place in range(len(rows))],
        submit_seconds=[row[0] for row in rows],
        duration_seconds=[100.0] * len(rows),
        num_gpus=[row[1] for row in rows],
        queues=[row[2] for row in rows],
        priority=[row[3] for row in rows],
        wants=[replace(wants, gpu_type=row[4]) for row in rows],
    )
    jobs = fitting_jobs(jobs, cluster, skip_unfit=False)
    played = play_queue(jobs, cluster, "quota")
    return played.first_start_seconds.tolist(), played.interruptions.tolist()


@pytest.mark.parametrize(
    ("fungible", "start"),
    [({}, 100.0), ({"whenCanBorrow": "Borrow"}, 100.0), ({"whenCanBorrow": "TryNextFlavor"}, 5.0)],
)
def test_a_flavor_to_be_borrowed_is_taken_unless_the_next_is_to_be_tried(
    fungible: dict[str, str], start: float, tmp_path: Path
) -> None:
    # a's second job borrows b's H100s, or takes its own A100s and leaves them to b.
    objects = [*FLAVORS, queue("a", BOTH, flavorFungibility=fungible),
               queue("b", {"h100": (8, {})}, **NEVER)]  # fmt: skip
    rows = [(0.0, 8, "mine", 0, ""), (0.0, 8, "mine", 0, ""), (5.0, 8, "b", 0, "")]
    assert starts(tmp_path, objects, rows)[0] == [0.0, 0.0, start]


@pytest.mark.parametrize(
    ("fungible", "interrupted"),
    [({}, 0), ({"whenCanPreempt": "Preempt"}, 1), ({"whenCanPreempt": "MayStopSearch"}, 1)],
)
def test_the_next_flavor_comes_before_interrupting_unless_the_search_may_stop(
    fungible: dict[str, str], interrupted: int, tmp_path: Path
) -> None:
    one = queue("a", BOTH, flavorFungibility=fungible, cohortName="",
                preemption={"withinClusterQueue": "LowerPriority"})  # fmt: skip
    rows = [(0.0, 8, "a", 0, ""), (5.0, 8, "a", 1, "")]
    assert starts(tmp_path, [*FLAVORS, one], rows) == ([0.0, 5.0], [interrupted, 0])


def test_a_queue_borrows_only_flavors_that_it_has_and_jobs_only_kinds_they_may_be_on(
    tmp_path: Path,
) -> None:
    objects = [*FLAVORS, queue("a", BOTH, **NEVER),
               queue("b", {"h100": (8, {"borrowingLimit": 0})}, **NEVER)]  # fmt: skip
    rows = [
        (0.0, 8, "a", 0, "A100"),
        (0.0, 8, "b", 0, ""),
        (1.0, 4, "b", 0, ""),  # a's A100s would be no help, nor may it borrow H100s
        (2.0, 8, "a", 0, "A100"),
        (3.0, 8, "a", 0, ""),
    ]
    assert starts(tmp_path, objects, rows)[0] == [0.0, 0.0, 100.0, 100.0, 3.0]


@pytest.mark.sweep(every=3)
@pytest.mark.parametrize(
    ("cores", "memory", "limits", "start"),
    [
        ("64", "512Gi", {}, 0.0),
        ("16", "512Gi", {}, 100.0),  # the first job of 16 cores takes all of them
        ("24", "512Gi", {}, 100.0),
        ("64", "96Gi", {}, 100.0),
        ("16", "512Gi", {"borrowingLimit": "16"}, 0.0),  # b lends its own sixteen
        ("16", "512Gi", {"borrowingLimit": "15"}, 100.0),
    ],
)
@pytest.mark.parametrize("apart", [False, True])
def test_quotas_of_cores_and_memory_hold_a_job_back_beside_those_of_gpus(
    cores: str, memory: str, limits: dict[str, str], start: float, apart: bool, tmp_path: Path
) -> None:
    """Two jobs of 4 GPUs, 16 cores and 64 GiB each; quotas in one group, or in two."""

    def shared(name: str, cpu: dict[str, Any], amount: str) -> dict[str, Any]:
        beside = [{"name": "cpu", **cpu}, {"name": "memory", "nominalQuota": amount}]
        gpus = [{"name": "nvidia.com/gpu", "nominalQuota": 16}]
        together = [{"flavors": [{"name": "any", "resources": [*beside, *gpus]}]}]
        two = [{"flavors": [{"name": "cores", "resources": beside}]},
               {"flavors": [{"name": "any", "resources": gpus}]}]  # fmt: skip
        return {"kind": "ClusterQueue", "metadata": {"name": name},
                "spec": {"cohortName": "all" if limits else "",
                         "resourceGroups": two if apart else together}}  # fmt: skip

    objects = [shared("a", {"nominalQuota": cores, **limits}, memory),
               shared("b", {"nominalQuota": "16"}, memory)]  # fmt: skip
    rows = [(0.0, 4, "a", 0, ""), (0.0, 4, "a", 0, "")]
    wants = JobWants(cpus=16.0, memory_bytes=64.0 * 2**30)
    assert starts(tmp_path, objects, rows, wants)[0] == [0.0, start]


def test_cores_are_borrowed_and_taken_back_as_gpus_are(tmp_path: Path) -> None:
    objects = [
        queue("a", {"any": (8, {})}, cpu="0"),
        queue("b", {"any": (8, {})}, cpu="32", preemption={"reclaimWithinCohort": "Any"}),
    ]
    rows = [(0.0, 4, "a", 0, ""), (5.0, 4, "b", 0, "")]
    found = starts(tmp_path, objects, rows, JobWants(cpus=32.0))
    assert found == ([0.0, 5.0], [1, 0])


def test_what_no_quota_covers_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, jobs = tmp_path / "cluster.json", tmp_path / "jobs.csv"
    one = queue("a", {"any": (8, {})}, cpu="8", cohortName="")
    path.write_text(json.dumps({"items": [*NODES, one]}))
    jobs.write_text("submit_s,duration_s,gpus,cpus,queue\n0,10,4,16,a\n")
    words = ["queue", "simulate", str(jobs), "--policy", "quota", "--cluster"]
    assert main.run([*words, str(path)]) == 2
    assert "of queue a asks for 16 cores, and its quota with all" in capsys.readouterr().err
    plain = tmp_path / "cluster.toml"
    plain.write_text("[[nodes]]\ncount = 2\ngpus = 8\n[queues.a]\nquota = 8\ncores = {quota = 8}\n")
    assert main.run([*words, str(plain)]) == 2
    assert "queues.a: a quota of cores needs cpus of all nodes" in capsys.readouterr().err


FAIR = {"kind": "Configuration", "metadata": {}, "fairSharing": {"enable": True}}


@pytest.mark.parametrize(
    ("weights", "ends"),
    [
        # a borrows eight A100s and four H100s of 24 GPUs, b four H100s: four are taken from a.
        ({}, {"a": 1, "b": 0}),
        # 12 of 24 over two are more than 4 of 24; of H100s alone a's share would be the less.
        ({"a": "2"}, {"a": 1, "b": 0}),
        ({"a": "8"}, {"a": 0, "b": 1}),
    ],
)
def test_shares_are_what_is_borrowed_of_all_flavors_together(
    weights: dict[str, str], ends: dict[str, int], tmp_path: Path
) -> None:
    """All is lent by `lender`, which takes four H100s back; who borrowed most gives them up."""
    take_back = {"preemption": {"reclaimWithinCohort": "Any"}}
    none: dict[str, Any] = {"h100": (0, {}), "a100": (0, {})}
    queues = [queue("lender", {"h100": (16, {}), "a100": (8, {})}, **take_back)]
    for name in ("a", "b"):
        queues.append(queue(name, none, fairSharing={"weight": weights.get(name, "1")}))
    rows = [
        (0.0, 8, "a", 0, "A100"),
        (0.0, 4, "a", 0, "H100"),
        (0.0, 4, "b", 0, "H100"),
        (0.0, 8, "lender", 0, "H100"),
        (5.0, 4, "lender", 0, "H100"),
    ]
    started, interrupted = starts(tmp_path, [*FLAVORS, *queues, FAIR], rows)
    assert started == [0.0, 0.0, 0.0, 0.0, 5.0]
    assert {"a": interrupted[0] + interrupted[1], "b": interrupted[2]} == ends


def test_one_flavor_is_all_gpus_and_needs_no_kinds(tmp_path: Path) -> None:
    whole = {"any": (12, {"lendingLimit": "4"})}
    objects = [queue("a", whole), queue("b", {"any": (12, {})})]
    rows = [(0.0, 8, "b", 0, ""), (0.0, 8, "b", 0, ""), (0.0, 8, "mine", 0, "")]
    assert starts(tmp_path, objects, rows)[0] == [0.0, 0.0, 0.0]
    held = [(0.0, 8, "b", 0, ""), (0.0, 8, "b", 0, ""), (0.0, 8, "b", 0, "")]
    assert starts(tmp_path, objects, held)[0] == [0.0, 0.0, 100.0]


@pytest.mark.parametrize(
    ("objects", "says"),
    [
        ([flavor("h100"), queue("a", BOTH)], "ResourceFlavor a100 is not there"),
        ([flavor("h100", nodeLabels={}), flavor("a100"), queue("a", BOTH)],
         "ResourceFlavor h100: its nodeLabels choose 3 nodes"),
        ([flavor("h100", nodeTaints=[{"key": "spot", "effect": "NoSchedule"}]), flavor("a100"),
          queue("a", BOTH)], "ResourceFlavor h100: nodeTaints"),
        ([*FLAVORS, queue("a", BOTH, stopPolicy="Hold")], "ClusterQueue a: stopPolicy Hold"),
        ([*FLAVORS, queue("a", BOTH, admissionChecks=["quota"])], "a: admissionChecks: what"),
        ([*FLAVORS, queue("a", BOTH, fairSharing={"weight": "2"})],
         "a has a fairSharing.weight, and whether fair sharing is on"),
        ([*FLAVORS, queue("a", BOTH, flavorFungibility={"preference": "PreemptionOverBorrowing"})],
         "flavorFungibility.preference is not modelled"),
        ([*FLAVORS, queue("a", BOTH, preemption={"reclaimWithinCohort": "Maybe"})],
         "reclaimWithinCohort 'Maybe' is not known"),
        ([*FLAVORS, queue("a", BOTH, preemption={"borrowWithinCohort": {
            "policy": "LowerPriority", "maxPriorityThreshold": 3}})], "maxPriorityThreshold"),
        ([*FLAVORS, queue("a", BOTH), local("x", "a"), local("x", "b", "other")],
         "LocalQueue x is of a in one namespace"),
    ],
)  # fmt: skip
def test_what_is_not_modelled_or_not_to_be_known_is_refused_by_name(
    objects: list[dict[str, Any]], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "cluster.json"
    path.write_text(json.dumps({"items": [*NODES, *objects]}))
    (tmp_path / "jobs.csv").write_text("submit_s,duration_s,gpus\n0,10,1\n")
    assert main.run(["queue", "simulate", str(tmp_path / "jobs.csv"), "--cluster", str(path)]) == 2
    said = capsys.readouterr().err
    assert says in said
    assert said.count("\n") == 1
