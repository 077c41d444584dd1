"""Jobs that insist on a kind of GPU wait for one, whatever the trace and the cluster call it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ridgeline.cli import main
from ridgeline.records.queue_simulation import QueueSimulation

TWO_KINDS = """
[[nodes]]
count = 1
gpus = 4
gpu_type = "h100"
[[nodes]]
count = 1
gpus = 4
gpu_type = "a100"
"""
H100, A100 = "NVIDIA-H100-80GB-HBM3", "NVIDIA-A100-SXM4-80GB"
LABEL = "nvidia.com/gpu.product"


def waits(capsys: pytest.CaptureFixture[str], jobs: Path, cluster: Path) -> QueueSimulation:
    words = ["queue", "simulate", str(jobs), "--cluster", str(cluster), "--policy", "fifo-skip"]
    assert main.run([*words, "--json"]) == 0
    return msgspec.json.decode(capsys.readouterr().out, type=QueueSimulation)


def pod(number: int, spec: dict[str, Any]) -> dict[str, Any]:
    """A pod of four GPUs that was made at ten and ran for ten minutes."""
    container = {"name": "c", "resources": {"limits": {"nvidia.com/gpu": "4", "cpu": "8"}}}
    return {
        "kind": "Pod",
        "metadata": {"name": f"p{number}", "creationTimestamp": f"2026-01-05T10:00:0{number}Z"},
        "spec": {"containers": [container], **spec},
        "status": {"phase": "Succeeded", "startTime": "2026-01-05T10:10:00Z",
                   "containerStatuses": [{"state": {"terminated":
                                                    {"finishedAt": "2026-01-05T10:20:00Z"}}}]},
    }  # fmt: skip


def selected(kind: str) -> dict[str, Any]:
    return {"nodeSelector": {LABEL: kind}}


def required(*kinds: str, operator: str = "In") -> dict[str, Any]:
    expression = {"key": LABEL, "operator": operator, "values": list(kinds)}
    terms = {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}
    return {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}}


@pytest.fixture
def cluster(tmp_path: Path) -> Path:
    path = tmp_path / "cluster.toml"
    path.write_text(TWO_KINDS)
    return path


@pytest.mark.sweep(every=4)
@pytest.mark.parametrize(
    ("second", "mean"),
    [
        (selected(H100), 599 / 2),  # it waits for the first, though the A100s are free
        (required(H100), 599 / 2),
        (selected(A100), 0.0),
        (required(H100, A100), 0.0),
        (required(A100, "NVIDIA-B200", operator="NotIn"), 599 / 2),
        (required(H100, operator="NotIn"), 0.0),
        (required("NVIDIA-B200", operator="NotIn"), 0.0),
        ({}, 0.0),
    ],
)
def test_a_pod_waits_for_the_kind_that_it_insists_on(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, cluster: Path, second: dict[str, Any],
    mean: float,
) -> None:  # fmt: skip
    pods = tmp_path / "pods.json"
    pods.write_text(json.dumps({"items": [pod(0, selected(H100)), pod(1, second)]}))
    assert waits(capsys, pods, cluster).policies[0].mean_wait_seconds == mean


@pytest.mark.parametrize(
    ("fields", "first", "second", "mean"),
    [
        ("AllocTRES", "gres/gpu:h100=4,gres/gpu=4", "gres/gpu:h100=4,gres/gpu=4", 299.5),
        ("AllocTRES", "gres/gpu:h100=4,gres/gpu=4", "gres/gpu:a100=4,gres/gpu=4", 0.0),
        ("ReqTRES|AllocTRES", "gres/gpu:h100=4|gres/gpu=4", "gres/gpu=4|gres/gpu:h100=4", 0.0),
        ("Constraints|AllocTRES", "h100|gres/gpu=4", "[h100*1]&ib|gres/gpu=4", 299.5),
        ("ReqGRES", "gpu:h100:4", "gpu:h100:4", 299.5),
        ("AllocTRES", "gres/gpu:h100=2,gres/gpu:a100=2", "gres/gpu=4", 0.0),
        ("AllocTRES", "gres/gpu:nvidia_a100_1g.10gb=1,gres/gpu=1", "gres/gpu:a100=4", 299.5),
        ("AllocTRES", "gres/gpu:1g.10gb=1", "gres/gpu:a100=4", 0.0),
    ],
)
def test_a_job_of_slurm_waits_for_the_kind_that_it_asked_for_or_was_given(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, cluster: Path, fields: str, first: str,
    second: str, mean: float,
) -> None:  # fmt: skip
    printed = tmp_path / "sacct.txt"
    lines = [f"{place}|2026-01-05T10:00:0{place}|600|COMPLETED|{cells}"
             for place, cells in enumerate([first, second])]  # fmt: skip
    printed.write_text("\n".join([f"JobID|Submit|ElapsedRaw|State|{fields}", *lines]))
    found = waits(capsys, printed, cluster)
    assert found.policies[0].mean_wait_seconds == mean
    assert not found.notes


def test_kinds_are_not_heeded_where_no_node_has_one_and_it_says_so(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    pods = tmp_path / "pods.json"
    pods.write_text(json.dumps({"items": [pod(0, selected(H100)), pod(1, selected("B999"))]}))
    line = ["queue", "simulate", str(pods), "--gpus", "8", "--policy", "fifo", "--json"]
    assert main.run(line) == 0
    found = msgspec.json.decode(capsys.readouterr().out, type=QueueSimulation)
    assert found.policies[0].mean_wait_seconds == 0.0
    assert [note for note in found.notes if note.startswith("Kinds of GPU that jobs ask for")]


def test_a_kind_that_no_node_has_is_one_line_with_those_there_are(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, cluster: Path
) -> None:
    jobs = tmp_path / "jobs.csv"
    jobs.write_text("name,submit_seconds,duration_seconds,num_gpus,gpu_type\nx,0,60,1,b999\n")
    assert main.run(["queue", "simulate", str(jobs), "--cluster", str(cluster)]) == 2
    said = capsys.readouterr().err
    assert "job x asks for 1 GPU of type b999" in said
    assert "(its nodes have a100, h100)" in said
    assert said.count("\n") == 1


def test_any_of_several_kinds_will_do(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, cluster: Path
) -> None:
    jobs = tmp_path / "jobs.csv"
    rows = ["0,60,4,h100", "0,60,4,h100|b999", "0,90,4,A100-SXM4-80GB|h100", "0,1,4,a100"]
    head = "submit_seconds,duration_seconds,num_gpus,gpu_type"
    jobs.write_text("\n".join([head, *rows]))
    (played,) = waits(capsys, jobs, cluster).policies
    # The second waits for the first, the third has the A100s at once, the fourth waits for it.
    assert played.mean_wait_seconds == (0 + 60 + 0 + 90) / 4


def node(name: str, kind: str, **spec: Any) -> dict[str, Any]:
    return {
        "kind": "Node",
        "metadata": {"name": name, "labels": {LABEL: kind}},
        "spec": spec,
        "status": {"allocatable": {"nvidia.com/gpu": "4", "cpu": "10", "memory": "64Gi"}},
    }


def test_nodes_as_kubectl_prints_them_are_a_cluster(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    nodes, pods = tmp_path / "nodes.json", tmp_path / "pods.json"
    nodes.write_text(json.dumps({"items": [
        node("a", H100), node("b", H100), node("c", A100), node("d", H100, unschedulable=True)
    ]}))  # fmt: skip
    pods.write_text(json.dumps({"items": [pod(place, selected(H100)) for place in range(3)]}))
    found = waits(capsys, pods, nodes)
    assert (found.gpus, found.nodes) == (12, 3)
    assert found.policies[0].mean_wait_seconds == (0 + 0 + 598) / 3
    assert main.run(["queue", "simulate", str(pods), "--cluster", str(pods)]) == 2
    assert "no node with a GPU that takes jobs" in capsys.readouterr().err


def test_nodes_as_sinfo_prints_them_are_a_cluster(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    nodes, jobs = tmp_path / "sinfo.txt", tmp_path / "jobs.csv"
    nodes.write_text(
        "NODELIST|GRES|STATE|PARTITION\nn[1-2]|gpu:h100:4|idle|gpu*\n"
        "n3|gpu:a100:4|mixed|gpu*\nn4|gpu:a100:4|down*|gpu*\nlogin|(null)|idle|cpu\n"
    )
    jobs.write_text("submit_seconds,duration_seconds,num_gpus,gpu_type\n0,60,4,a100\n0,60,4,a100\n")
    found = waits(capsys, jobs, nodes)
    assert (found.gpus, found.nodes) == (12, 3)
    assert found.policies[0].mean_wait_seconds == 30.0


def test_nodes_of_openb_are_a_cluster(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    nodes, jobs = tmp_path / "nodes.csv", tmp_path / "tasks.csv"
    nodes.write_text("sn,cpu_milli,memory_mib,gpu,model\na,8000,8192,2,T4\nb,8000,8192,2,A10\n")
    jobs.write_text(
        "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,creation_time,deletion_time,"
        "scheduled_time\nx,8000,10,1,500,T4,0,60,0\ny,8000,10,1,500,T4,0,60,0\n"
        "z,8000,10,1,500,T4|A10,0,60,0\n"
    )
    found = waits(capsys, jobs, nodes)
    # All cores of a node are taken by each; y waits for x.
    assert found.policies[0].mean_wait_seconds == 20.0


def test_a_pod_whose_excluded_kinds_are_all_there_are_is_one_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, cluster: Path
) -> None:
    pods = tmp_path / "pods.json"
    pods.write_text(json.dumps({"items": [pod(0, required(H100, A100, operator="NotIn"))]}))
    assert main.run(["queue", "simulate", str(pods), "--cluster", str(cluster)]) == 2
    said = capsys.readouterr().err
    assert "of another type than NVIDIA-A100-SXM4-80GB or NVIDIA-H100-80GB-HBM3" in said
    assert said.count("\n") == 1
