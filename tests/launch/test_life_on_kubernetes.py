"""A run's life against a played API server, through the command line and the real client."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.launch.played_cluster import PlayedCluster
from tests.launch.recipe import KUBERNETES, NODES, ON_FOUR

from ridgeline.cli.main import run as ridgeline
from ridgeline.launch.remembered import Remembered
from ridgeline.records.state_folder import state_folder

pytest.importorskip("kubernetes", reason="needs ridgeline[kubernetes]")
# The client is generated code with deprecation warnings of its own.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:kubernetes")

RECIPE = f"""{ON_FOUR}
[run]
steps = 100
[prediction]
step_seconds = 36.0
tokens_per_second_per_gpu = 1.0
peak_bytes = 1.0
"""
CLUSTER = f'{NODES}device = "H100-SXM-80GB"\n{KUBERNETES}'
JOBSETS = "/apis/jobset.x-k8s.io/v1alpha2/namespaces/default/jobsets"
WORKLOADS = "/apis/kueue.x-k8s.io/v1beta2/namespaces/default/workloads"


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[PlayedCluster]:
    with PlayedCluster() as played:
        (tmp_path / "kubeconfig").write_text(played.kubeconfig())
        (tmp_path / "gpt.toml").write_text(RECIPE)
        (tmp_path / "cluster.toml").write_text(CLUSTER)
        # The client reads KUBECONFIG once, when it is imported.
        monkeypatch.setattr(
            "kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION",
            str(tmp_path / "kubeconfig"),
        )
        monkeypatch.setenv("RIDGELINE_STATE", str(tmp_path / "state"))
        monkeypatch.chdir(tmp_path)
        yield played


LAUNCH = ["launch", "gpt.toml", "--on", "kubernetes", "--cluster", "cluster.toml"]


def status(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    capsys.readouterr()
    assert ridgeline(["launch", "status", "gpt", "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_a_run_lives_from_submission_to_its_end(
    cluster: PlayedCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ridgeline(LAUNCH) == 0
    told = capsys.readouterr()
    assert "4.0 device-hours, about $16" in told.err  # 100 steps of 36 s on 4 devices
    assert cluster.kinds() == ["ConfigMap", "JobSet"]

    # In the queue.
    job_set = cluster.objects[f"{JOBSETS}/gpt"]
    config_map = cluster.objects["/api/v1/namespaces/default/configmaps/gpt-recipe"]
    assert config_map["metadata"]["ownerReferences"][0]["uid"] == job_set["metadata"]["uid"]
    message = (
        "couldn't assign flavors to pod set node: insufficient unused quota for nvidia.com/gpu"
        " in flavor h100, 2 more needed"
    )
    reserved = {"type": "QuotaReserved", "status": "False", "reason": "Pending", "message": message}
    owner = [{"uid": job_set["metadata"]["uid"]}]
    workload = {
        "kind": "Workload",
        "metadata": {"name": "jobset-gpt", "ownerReferences": owner},
        "status": {"conditions": [reserved]},
    }
    cluster.put(WORKLOADS, workload)
    found = status(capsys)
    assert found["state"] == "pending"
    assert found["why"] == "the queue is full: 2 more nvidia.com/gpu are needed in flavor h100"

    # Admitted, running, speaking.
    workload["status"] = {"conditions": [{"type": "Admitted", "status": "True"}]}
    for index in (0, 1):
        cluster.pod(f"gpt-node-0-{index}-aaaaa", "gpt", index, {"phase": "Running"})
    cluster.say("gpt-node-0-0-aaaaa", "2026-11-21T10:00:01Z", "[rank0]:step 1")
    cluster.say("gpt-node-0-1-aaaaa", "2026-11-21T10:00:01.5Z", "[rank3]:step 1")
    cluster.say("gpt-node-0-0-aaaaa", "2026-11-21T10:00:02.25Z", "[rank1]:step 2")
    found = status(capsys)
    assert (found["state"], found["nodes_running"], found["nodes"]) == ("running", 2, 2)

    # A worker is taken; the others go on when it is back.
    taken = {
        "phase": "Failed",
        "conditions": [
            {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}
        ],
    }
    cluster.pod("gpt-node-0-1-aaaaa", "gpt", 1, taken)
    found = status(capsys)
    assert found["state"] == "restarting"
    assert found["detail"] == ["gpt-node-0-1-aaaaa was taken by the cluster: PreemptionByScheduler"]
    cluster.pod("gpt-node-0-1-bbbbb", "gpt", 1, {"phase": "Running"})
    cluster.say("gpt-node-0-1-bbbbb", "2026-11-21T10:01:00.000000001Z", "[rank2]:resumed at step 2")
    found = status(capsys)
    assert found["state"] == "running"
    assert found["detail"][-1] == "[rank 2] resumed at step 2"

    # Done; its logs are one text, in order.
    job_set["status"] = {"conditions": [{"type": "Completed", "status": "True"}]}
    assert status(capsys)["state"] == "done"
    capsys.readouterr()
    assert ridgeline(["launch", "logs", "-f", "gpt"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "[rank 0] step 1",
        "[rank 3] step 1",
        "[rank 1] step 2",
        "[rank 2] resumed at step 2",
    ]
    assert ridgeline(["launch", "cancel", "gpt"]) == 0
    assert set(cluster.kinds()) == {"Pod"}  # the garbage collector's business


def test_logs_that_are_followed_come_once_and_in_order(
    cluster: PlayedCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    from ridgeline.launch.kube.api import connect
    from ridgeline.launch.places.kubernetes import PodLogs

    assert ridgeline(LAUNCH) == 0
    run = Remembered(state_folder("launch")).read("gpt")
    read = PodLogs(connect("default"), run)
    for index in (0, 1):
        cluster.pod(f"p{index}", "gpt", index, {"phase": "Running"})
    cluster.say("p0", "2026-11-21T10:00:01.1Z", "[rank0]:a")
    cluster.say("p1", "2026-11-21T10:00:01Z", "[rank2]:b")
    assert [line.text for line in read()] == ["b", "a"]
    assert read() == []
    cluster.say("p0", "2026-11-21T10:00:01.123456789Z", "[rank0]:c")
    assert [line.text for line in read()] == ["c"]


def test_the_first_error_comes_first_and_is_not_the_aftermath(
    cluster: PlayedCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ridgeline(LAUNCH) == 0
    for index in (0, 1):
        cluster.pod(f"p{index}", "gpt", index, {"phase": "Failed"})
    cluster.say("p0", "2026-11-21T10:00:01Z", "[rank0]:RuntimeError: Connection closed by peer")
    cluster.say("p1", "2026-11-21T10:00:02Z", "[rank3]:ValueError: no such expert")
    capsys.readouterr()
    assert ridgeline(["launch", "logs", "gpt"]) == 0
    assert capsys.readouterr().out.startswith("first error: [rank 3] ValueError: no such expert\n")


def test_a_submission_that_fails_leaves_nothing_behind(
    cluster: PlayedCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.refuse = "JobSet"
    assert ridgeline(LAUNCH) == 1
    assert "JobSet gpt: the API server answered 500" in capsys.readouterr().err
    assert cluster.objects == {}
    assert Remembered(state_folder("launch")).all() == []


@pytest.mark.parametrize("survived", [True, False])
def test_a_launcher_that_was_killed_is_finished_or_undone(
    cluster: PlayedCluster, capsys: pytest.CaptureFixture[str], *, survived: bool
) -> None:
    assert ridgeline(LAUNCH) == 0
    remembered = Remembered(state_folder("launch"))
    run = remembered.read("gpt")
    # As a kill -9 between two creations leaves it.
    remembered.write(msgspec.structs.replace(run, phase="submitting", launcher_pid=2**22 + 1))
    del cluster.objects["/api/v1/namespaces/default/configmaps/gpt-recipe"]["metadata"][
        "ownerReferences"
    ]
    if not survived:
        del cluster.objects[f"{JOBSETS}/gpt"]
    code = ridgeline(["launch", "status", "gpt"])
    if survived:
        assert code == 0
        assert remembered.read("gpt").phase == "submitted"
        owned = cluster.objects["/api/v1/namespaces/default/configmaps/gpt-recipe"]
        assert owned["metadata"]["ownerReferences"]
    else:
        assert code == 2
        assert cluster.objects == {}
        assert remembered.all() == []


def test_a_name_that_runs_already_is_refused(
    cluster: PlayedCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ridgeline(LAUNCH) == 0
    assert ridgeline(LAUNCH) == 2
    assert "a run 'gpt' on kubernetes has not ended" in capsys.readouterr().err
    assert cluster.kinds() == ["ConfigMap", "JobSet"]


def test_objects_of_another_are_left_alone(
    cluster: PlayedCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.put(JOBSETS, {"kind": "JobSet", "metadata": {"name": "gpt"}})
    assert ridgeline(LAUNCH) == 2
    assert "JobSet gpt exists in default" in capsys.readouterr().err
    assert cluster.kinds() == ["JobSet"]
