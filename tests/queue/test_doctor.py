"""`ridgeline queue doctor`: planted faults, healthy clusters, and what their cures are worth."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from tests.queue.asked_doctor import diagnosed, made, write
from tests.queue.drawn_clusters import DRAWN
from tests.queue.foreign_clusters import FOREIGN, FOREIGN_HEALTHY
from tests.queue.planted_clusters import GPU, HEALTHY, NOW, PLANTED, Cluster, stamp
from tests.queue.reported_clusters import REPORTED
from tests.queue.slurm_clusters import FAULTS
from tests.queue.strange_clusters import STRANGE, STRANGE_HEALTHY
from tests.queue.told_clusters import TOLD
from tests.queue.unseen_clusters import UNSEEN, UNSEEN_HEALTHY
from tests.queue.withheld_clusters import WITHHELD

from ridgeline.cli import main
from ridgeline.queue.doctor.rules import doctor_rules

SEEDS = (1, 2)


@pytest.mark.sweep("2")
@pytest.mark.parametrize("seed", SEEDS)
def test_of_twenty_four_planted_clusters_every_cause_is_named_first(
    seed: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    missed = {}
    for name, (cause, plant) in PLANTED.items():
        found = diagnosed(write(made(plant, seed), tmp_path), capsys)
        causes = [one.cause for one in found.findings]
        if causes[:1] != [cause]:
            missed[name] = causes
    assert len(PLANTED) == 24
    assert not missed


@pytest.mark.parametrize(
    ("other_uses", "limits", "lending", "held"),
    [
        (0, {}, {}, False),  # its cohort lends what it lacks
        (8, {}, {}, True),  # the other queue has taken back what is its own
        (0, {"borrowingLimit": "0"}, {}, True),
        (0, {}, {"lendingLimit": "0"}, True),
    ],
)
def test_a_quota_in_a_cohort_holds_back_only_what_the_cohort_does_not_lend(
    other_uses: int,
    limits: dict[str, str],
    lending: dict[str, str],
    held: bool,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    cluster = Cluster(1)
    names = cluster.nodes(4)
    for queue, more in (("mine", limits), ("other", lending)):
        resource = {"name": GPU, "nominalQuota": "8", **more}
        flavors = [{"name": "gpu", "resources": [resource]}]
        cluster.objects += [
            {"kind": "ClusterQueue", "metadata": {"name": queue},
             "spec": {"cohortName": "ml", "resourceGroups": [{"flavors": flavors}]}},
            {"kind": "LocalQueue", "metadata": {"name": queue, "namespace": "research"},
             "spec": {"clusterQueue": queue}},
        ]  # fmt: skip
    queued = {"kueue.x-k8s.io/queue-name": "mine"}
    cluster.pod(gpus=8, node=names[0], ran=500, labels=queued)
    if other_uses:
        cluster.pod(gpus=8, node=names[1], ran=500, labels={"kueue.x-k8s.io/queue-name": "other"})
    cluster.pod(gpus=8, gates=True, labels=queued, prefix="held")
    found = diagnosed(write(cluster, tmp_path), capsys)
    causes = [one.cause for one in found.findings]
    assert ("quota-holds-back" in causes) == held
    if held:
        assert "cohort ml lends it no more" in found.findings[0].summary


@pytest.mark.parametrize(
    ("kind", "told", "held"),
    [
        ("", True, False),  # its other flavor has room, and its GPUs are free
        ("NVIDIA-H100-80GB-HBM3", True, True),
        ("NVIDIA-H100-80GB-HBM3", False, False),  # without ResourceFlavors they count together
    ],
)
def test_a_used_up_flavor_holds_back_only_pods_that_may_have_no_other(
    kind: str, told: bool, held: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = Cluster(1)
    product = "nvidia.com/gpu.product"
    kinds = {"h100": "NVIDIA-H100-80GB-HBM3", "a100": "NVIDIA-A100-SXM4-80GB"}
    names = cluster.nodes(4)
    for place, one in enumerate([one for one in cluster.objects if one["kind"] == "Node"]):
        one["metadata"]["labels"][product] = list(kinds.values())[place // 2]
    flavors = [{"name": name, "resources": [{"name": GPU, "nominalQuota": "8"}]} for name in kinds]
    cluster.objects += [
        {"kind": "ClusterQueue", "metadata": {"name": "mine"},
         "spec": {"resourceGroups": [{"flavors": flavors}]}},
        {"kind": "LocalQueue", "metadata": {"name": "mine", "namespace": "research"},
         "spec": {"clusterQueue": "mine"}},
    ]  # fmt: skip
    if told:
        cluster.objects += [
            {"kind": "ResourceFlavor", "metadata": {"name": name},
             "spec": {"nodeLabels": {product: label}}}
            for name, label in kinds.items()
        ]  # fmt: skip
    queued = {"kueue.x-k8s.io/queue-name": "mine"}
    cluster.pod(gpus=8, node=names[0], ran=500, labels=queued)
    cluster.pod(gpus=8, gates=True, labels=queued, prefix="held")
    if kind:
        cluster.objects[-1]["spec"]["nodeSelector"] = {product: kind}
    found = diagnosed(write(cluster, tmp_path), capsys)
    said = [one.summary for one in found.findings if one.cause == "quota-holds-back"]
    assert bool(said) == held
    if held:
        assert said[0].startswith("flavor h100 of ClusterQueue mine of 8 GPUs is used up (8)")


@pytest.mark.slow
def test_of_fourteen_clusters_of_other_kinds_every_cause_is_named_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """When they were written, thirteen were: a GPU model that no node has was not told of."""
    missed = {}
    for name, (cause, plant) in UNSEEN.items():
        found = diagnosed(write(made(plant, 1), tmp_path), capsys)
        causes = [one.cause for one in found.findings]
        if causes[:1] != [cause]:
            missed[name] = causes
    assert len(UNSEEN) == 14
    assert not missed
    for plant in UNSEEN_HEALTHY.values():
        assert diagnosed(write(made(plant, 1), tmp_path), capsys).findings == []


@pytest.mark.slow
def test_of_fifteen_clusters_that_people_report_every_cause_is_named_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """When they were written none of eleven was, and two of four healthy ones were called ill."""
    missed = {}
    for name, (cause, plant) in STRANGE.items():
        found = diagnosed(write(made(plant, 1), tmp_path), capsys)
        causes = [one.cause for one in found.findings]
        if causes[:1] != [cause]:
            missed[name] = causes
    assert (len(STRANGE), len(STRANGE_HEALTHY)) == (11, 4)
    assert not missed
    for plant in STRANGE_HEALTHY.values():
        assert diagnosed(write(made(plant, 1), tmp_path), capsys).findings == []


def test_of_twenty_clusters_of_a_fourth_kind_every_cause_is_named_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """When they were written ten were, and one of ten healthy ones was called ill."""
    missed = {}
    for name, (causes, plant) in FOREIGN.items():
        found = diagnosed(write(made(plant, 1), tmp_path), capsys)
        first = [one.cause for one in found.findings][:1]
        if not first or first[0] not in causes:
            missed[name] = first
    assert (len(FOREIGN), len(FOREIGN_HEALTHY)) == (20, 10)
    assert not missed
    for plant in FOREIGN_HEALTHY.values():
        assert diagnosed(write(made(plant, 1), tmp_path), capsys).findings == []


@pytest.mark.parametrize(("above", "held"), [(-1, False), (24, False), (16, True)])
def test_a_queue_of_kai_holds_back_what_those_above_it_may_not_have(
    above: int, held: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = Cluster(0)
    names = cluster.nodes(4)
    for name, parent, limit in (("all", "", above), ("vision", "all", 32), ("speech", "all", 32)):
        cluster.objects.append({
            "apiVersion": "scheduling.run.ai/v2", "kind": "Queue", "metadata": {"name": name},
            "spec": {"parentQueue": parent, "resources": {"gpu": {"quota": 8, "limit": limit}}},
        })  # fmt: skip
    for queue, node in (("vision", names[0]), ("speech", names[1])):
        cluster.pod(gpus=8, node=node, labels={"kai.scheduler/queue": queue})
    cluster.pod(gpus=8, labels={"kai.scheduler/queue": "vision"}, prefix="held")
    found = diagnosed(write(cluster, tmp_path), capsys).findings
    assert [one.cause for one in found] == (["quota-holds-back"] if held else [])
    if held:
        assert "Queue all has all of the 16 GPUs that it may have" in found[0].summary
        assert yaml.safe_load(found[0].setting)["spec"]["resources"]["gpu"]["limit"] == -1


@pytest.mark.slow
def test_of_twelve_healthy_clusters_none_is_called_ill(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for seed in SEEDS:
        alarms = {}
        for name, plant in HEALTHY.items():
            found = diagnosed(write(made(plant, seed), tmp_path), capsys)
            if found.findings:
                alarms[name] = [one.summary for one in found.findings]
        assert len(HEALTHY) == 12
        assert not alarms


@pytest.mark.slow
def test_every_rule_is_planted_and_every_cure_is_yaml(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    planted = [*PLANTED.values(), *STRANGE.values()]
    planted += [(causes[-1], plant) for causes, plant in FOREIGN.values()]
    planted += [*WITHHELD.values(), *UNSEEN.values(), *DRAWN.values()]
    planted += [(row[0], row[-1]) for row in (*TOLD.values(), *REPORTED.values())]
    of_slurm = {"backfill-cut-short", "whole-nodes-for-few", "limits-too-long"}
    of_slurm |= {cause for cause, _ in FAULTS.values()}
    assert {cause for cause, _ in planted} | of_slurm == set(doctor_rules())
    for _, plant in planted:
        for one in diagnosed(write(made(plant, 3), tmp_path), capsys).findings:
            assert all(isinstance(part, dict) for part in yaml.safe_load_all(one.setting))
            assert "{" not in one.cure
            assert one.lost_gpus > 0
            assert one.where


def test_gpus_lost_are_counted_as_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two jobs of four ranks on four nodes: each holds two nodes and waits for two more."""
    cluster = Cluster(0)
    names = cluster.nodes(4, 4)
    cluster.gang("a", running=names[:2], waiting=2, gpus=4)
    cluster.gang("b", running=names[2:], waiting=2, gpus=4)
    found = diagnosed(write(cluster, tmp_path), capsys)
    assert (found.gpus, found.allocated_gpus, found.waiting_gpus) == (16, 16, 16)
    first = found.findings[0]
    assert (first.cause, first.lost_gpus) == ("no-gang", 16)
    assert first.evidence["deadlock"] == "yes"
    group = yaml.safe_load(first.setting)
    assert (group["kind"], group["spec"]["minMember"]) == ("PodGroup", 4)
    assert group["metadata"] == {"name": "a", "namespace": "research"}
    # As it is neither ever computes; with a gang one has all sixteen, and then the other.
    worth = first.worth
    assert worth is not None
    assert (worth.waiting_jobs, worth.started_jobs, worth.cured_started_jobs) == (2, 0.0, 2.0)
    assert (worth.working_gpus, worth.cured_working_gpus) == (0.0, 16.0)
    assert worth.mean_wait_seconds == worth.longest_wait_seconds


@pytest.mark.parametrize(
    "label", ["scheduling.x-k8s.io/pod-group", "pod-group-name", "scheduling.k8s.io/group-name"]
)
def test_what_something_starts_whole_is_no_finding(
    label: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = Cluster(0)
    names = cluster.nodes(2)
    cluster.busy(names[1:])
    cluster.gang("a", running=names[:1], waiting=1, gpus=8, labels={label: "a"})
    assert diagnosed(write(cluster, tmp_path), capsys).findings == []


def test_packing_is_said_to_be_worth_what_it_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = Cluster(0)
    for name in cluster.nodes(4):
        for _ in range(4):
            cluster.pod(gpus=1, node=name, ran=500)
    for _ in range(3):
        cluster.pod(gpus=8)
    first = diagnosed(write(cluster, tmp_path), capsys).findings[0]
    # Sixteen GPUs in use fill two nodes of four; two of the three jobs have the others.
    assert (first.cause, first.lost_gpus) == ("spreading", 16)
    assert first.evidence["most_free_gpus_of_a_node"] == 4
    # Who runs is half through after 500 minutes: for as long, 16 GPUs work beside 16.
    worth = first.worth
    assert worth is not None
    assert worth.horizon_seconds == pytest.approx(500 * 60, abs=5)
    assert (worth.working_gpus, worth.cured_working_gpus) == (16.0, 32.0)
    assert (worth.started_jobs, worth.cured_started_jobs) == (0.0, 2.0)
    assert "no ended runs" in worth.assumed


def test_the_worth_of_a_cure_is_drawn_from_runs_that_have_ended(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = Cluster(0)
    names = cluster.nodes(4)
    cluster.busy(names[:3])
    cluster.node(closed=True)
    cluster.pod(gpus=8, waited=200)
    for minutes in (30, 60, 120, 400, 900, 2000):
        cluster.pod(gpus=1, node=names[3], ran=minutes, phase="Succeeded")
        cluster.objects[-1]["status"]["containerStatuses"] = [
            {"name": "main", "state": {"terminated": {"exitCode": 0, "finishedAt": stamp(0)}}}
        ]
    cluster.pod(gpus=8, node=names[3], ran=300)
    words = write(cluster, tmp_path)
    first = diagnosed(words, capsys).findings[0]
    worth = first.worth
    assert (first.cause, first.not_simulated) == ("closed-nodes", "")
    assert worth is not None
    assert worth.drawings == 20
    assert "the 6 runs with GPUs that have ended" in worth.assumed
    assert 0 < worth.gain_low < worth.gain_high <= 8
    assert worth.cured_mean_wait_seconds == 0 < worth.mean_wait_seconds
    assert main.run(["queue", "doctor", *words]) == 0
    assert "of 20 drawings" in " ".join(capsys.readouterr().out.split())


def test_who_keeps_large_jobs_from_starving_learns_what_that_costs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A queue that nobody overtakes lets GPUs stand idle until the large job has its node."""
    words = write(made(PLANTED["three large jobs overtaken"][1], 1), tmp_path)
    worth = diagnosed(words, capsys).findings[0].worth
    assert worth is not None
    assert worth.cured_working_gpus < worth.working_gpus
    assert worth.cured_mean_wait_seconds < worth.mean_wait_seconds


def test_what_cannot_be_simulated_says_why(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = write(made(PLANTED["slices too small"][1], 1), tmp_path)
    first = diagnosed(words, capsys).findings[0]
    assert first.worth is None
    assert "cut anew" in first.not_simulated
    assert main.run(["queue", "doctor", *words]) == 0
    assert "Worth: not simulated: which GPUs" in " ".join(capsys.readouterr().out.split())


def test_a_person_reads_cause_loss_cure_and_setting(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = write(made(PLANTED["CPU pods on GPU nodes"][1], 1), tmp_path)
    page = tmp_path / "page.html"
    assert main.run(["queue", "doctor", *words, "--html", str(page)]) == 0
    printed = capsys.readouterr().out
    assert "starved-of-cpu: 24 GPUs lost" in printed
    assert "effect: NoSchedule" in printed
    assert "starved-of-cpu" in page.read_text()


def test_slices_are_counted_where_all_gpus_are_split(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = Cluster(1)
    for _ in range(2):
        name = cluster.node(0, slices={"1g.10gb": 7, "3g.40gb": 2})
        cluster.pod(gpus=0, node=name, slices={"1g.10gb": 3}, ran=500)
    cluster.pod(gpus=0, slices={"3g.40gb": 5})
    words = write(cluster, tmp_path)
    assert main.run(["queue", "doctor", *words]) == 0
    printed = capsys.readouterr().out
    assert "18 MIG slices on 2 nodes" in printed
    assert "6 of 18 MIG slices" in printed
    assert "1 pod for 5 MIG slices" in printed
    assert " 0 GPUs" not in printed
    found = diagnosed(words, capsys)
    assert (found.gpus, found.slices, found.allocated_slices, found.waiting_slices) == (0, 18, 6, 5)


def test_a_node_that_gives_no_gpu_any_more_keeps_its_pods_out_of_what_is_played(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its driver is gone while pods run there, and others wait for whole nodes elsewhere."""
    cluster = Cluster(0)
    names = cluster.nodes(4)
    for name in names:
        cluster.pod(gpus=4, node=name, ran=500)
    cluster.objects[0]["status"]["allocatable"][GPU] = "0"
    cluster.pod(gpus=8, waited=90)
    found = diagnosed(write(cluster, tmp_path), capsys)
    assert [one.cause for one in found.findings] == ["unhealthy-gpus", "spreading"]
    assert all(one.worth is not None for one in found.findings)
    assert found.gpus == 24


def test_a_workload_in_part_keeps_what_it_has_where_a_strict_queue_is_played(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = Cluster(0)
    names = cluster.nodes(6)
    cluster.gang("part", running=names[:2], waiting=2, gpus=8)
    cluster.pod(gpus=8, waited=500, prefix="large")
    for name in names[2:]:
        for _ in range(4):
            cluster.pod(gpus=2, node=name, ran=50, waited=60)
    found = diagnosed(write(cluster, tmp_path), capsys)
    causes = {one.cause: one for one in found.findings}
    assert causes.keys() == {"no-gang", "large-jobs-starve"}
    assert causes["large-jobs-starve"].worth is not None


@pytest.mark.slow
def test_a_large_cluster_is_judged_in_seconds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = Cluster(5)
    spread_names = cluster.nodes(300)
    cluster.busy(spread_names, (1, 2, 4), keep=1)
    for _ in range(60):
        cluster.pod(gpus=8, waited=100)
    found = diagnosed(write(cluster, tmp_path), capsys)
    assert found.gpus == 2400
    assert found.findings[0].cause == "spreading"
    assert stamp(0) == NOW.strftime("%Y-%m-%dT%H:%M:%SZ")


@pytest.mark.parametrize("tolerated", ["", "spot"])
def test_a_pod_counts_as_placeable_only_on_nodes_that_admit_it(
    tolerated: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Opening a cordoned node helps only those who stand its taint."""
    cluster = Cluster(0)
    cluster.busy(cluster.nodes(2))
    cluster.node(taint="spot", closed=True)
    cluster.pod(gpus=8, tolerated=tolerated)
    found = diagnosed(write(cluster, tmp_path), capsys).findings
    assert [one.cause for one in found] == (["closed-nodes"] if tolerated else [])


def test_affinities_decide_where_packing_would_put_pods(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Pods that are spread since they must be apart are no fault of the scheduler's."""
    apart = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [
        {"labelSelector": {"matchLabels": {"app": "llm"}}, "topologyKey": "kubernetes.io/hostname"}
    ]}}  # fmt: skip
    for affinity, causes in ((None, ["spreading"]), (apart, [])):
        cluster = Cluster(0)
        for name in cluster.nodes(4):
            cluster.pod(gpus=2, node=name, ran=500, labels={"app": "llm"}, affinity=affinity)
        cluster.pod(gpus=8)
        found = diagnosed(write(cluster, tmp_path), capsys).findings
        assert [one.cause for one in found] == causes
