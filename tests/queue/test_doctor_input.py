"""What `ridgeline queue doctor` takes for a cluster's state, and what it refuses in one line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.queue.asked_doctor import diagnosed, write
from tests.queue.planted_clusters import GPU, Cluster

from ridgeline.cli import main


def test_tables_of_pods_and_nodes_are_read_as_well(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nodes, pods = tmp_path / "nodes.csv", tmp_path / "pods.csv"
    nodes.write_text(
        "sn,cpu_milli,memory_mib,gpu,model\nn0,64000,512000,8,H\nn1,64000,512000,8,H\n"
    )
    pods.write_text(
        "pod,job,node,gpus,cpu_milli\na0,a,n0,8,8000\na1,a,,8,8000\nb0,b,n1,8,8000\nb1,b,,8,8000\n"
    )
    found = diagnosed([str(pods), "--cluster", str(nodes)], capsys)
    assert [(one.cause, one.lost_gpus) for one in found.findings] == [("no-gang", 16)]
    assert any("no times" in note for note in found.notes)


def plain() -> list[dict[str, Any]]:
    cluster = Cluster(0)
    cluster.pod(gpus=8, node=cluster.node())
    return cluster.objects


def test_pods_of_a_node_that_is_gone_are_left_out_and_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = Cluster(0)
    gone, there = cluster.node(), cluster.node()
    for node in (gone, there):
        cluster.pod(gpus=8, node=node)
    cluster.objects = [one for one in cluster.objects if one["metadata"]["name"] != gone]
    found = diagnosed(write(cluster, tmp_path), capsys)
    assert (found.gpus, found.allocated_gpus) == (8, 8)
    assert any(note.startswith("2 pods on nodes that were not given") for note in found.notes)


def broken(change: Callable[[list[dict[str, Any]]], None]) -> object:
    objects = plain()
    change(objects)
    return {"kind": "List", "items": objects}


@pytest.mark.parametrize(
    ("content", "line"),
    [
        ({"items": 3}, "items is no list"),
        ({"items": [{"name": "x"}]}, "item 0 is no Kubernetes object"),
        ([], "no node with a GPU"),
        (broken(lambda all_: all_.append(all_[0])), "Node gpu-000 is given twice"),
        (broken(lambda all_: all_.pop(0)), "pod kube-system/node-exporter-0001 is on node gpu-000"),
        (broken(lambda all_: all_[0]["status"].pop("allocatable") and
                all_[0]["status"].pop("capacity")), "Node gpu-000: no status.allocatable"),
        (broken(lambda all_: all_[0]["status"]["allocatable"].update({GPU: "eight"})),
         "nvidia.com/gpu is 'eight'"),
        (broken(lambda all_: all_[0]["status"]["allocatable"].update({GPU: "1T"})),
         "1,000,000,000,000 GPUs on one node"),
        (broken(lambda all_: all_[2]["spec"]["containers"][0]["resources"]["requests"].update(
            cpu="many")), "cpu is 'many'"),
        (broken(lambda all_: all_[0].update(status={"conditions": 3}) or
                all_[2]["spec"].update(containers="x")), "Node gpu-000: no status.allocatable"),
    ],
    ids=str,
)  # fmt: skip
def test_what_is_no_state_is_one_line(
    content: object, line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "state.json"
    path.write_text(json.dumps(content))
    assert main.run(["queue", "doctor", str(path)]) == 2
    printed = capsys.readouterr().err.strip()
    assert line in printed
    assert "\n" not in printed


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("NAME     READY   STATUS\nllm-0    1/1     Running\n", "kubectl's table or description"),
        ("Name:               gpu-1\nRoles:              worker\n", "table or description"),
        ("PARTITION AVAIL TIMELIMIT NODES STATE NODELIST\ngpu* up 7-00 1 mix g1\n",
         "a table of sinfo's without GRES"),
    ],
)  # fmt: skip
def test_what_is_printed_for_people_is_one_line_with_the_command_to_take(
    text: str, line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "state.txt"
    path.write_text(text)
    assert main.run(["queue", "doctor", str(path)]) == 2
    printed = capsys.readouterr().err.strip()
    assert line in printed
    assert "print sinfo -N" in printed or "-o json" in printed
    assert "\n" not in printed


@pytest.mark.parametrize(
    ("table", "line"),
    [
        ("pod,util\na,1\n", "lacks columns; give samples as CSV"),
        ("namespace,pod,utilisation\nresearch,x,30\n", "none of its pods is in the state"),
        ("namespace,pod,utilisation\nresearch,x,300\n", "line 2: utilisation is '300'"),
    ],
)
def test_samples_that_are_none_are_one_line(
    table: str, line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "state.json").write_text(json.dumps({"items": plain()}))
    (tmp_path / "dcgm.csv").write_text(table)
    words = [str(tmp_path / "state.json"), "--dcgm", str(tmp_path / "dcgm.csv")]
    assert main.run(["queue", "doctor", *words]) == 2
    assert line in capsys.readouterr().err
