"""The wait that `ridgeline launch --state` tells before anything is submitted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.launch.recipe import RECIPE
from tests.queue.planted_clusters import Cluster, stamp
from tests.queue.withheld_clusters import cluster_queue, kueue_job

from ridgeline.cli import main
from ridgeline.errors import InputError
from ridgeline.queue.doctor.constraints import Tolerated
from ridgeline.queue.expected_wait import ExpectedWait, expected_wait
from ridgeline.queue.queue_now import queue_of_pods
from ridgeline.queue.readers.cluster_state import read_cluster_state


def asked(
    cluster: Cluster,
    folder: Path,
    gpus: int,
    selector: dict[str, str] | None = None,
    tolerated: tuple[Tolerated, ...] = (),
) -> ExpectedWait:
    path = folder / "state.json"
    path.write_text(json.dumps({"items": cluster.objects}))
    return expected_wait(queue_of_pods(read_cluster_state([path]), selector, tolerated), gpus)


def history(cluster: Cluster, node: str, minutes: list[float]) -> None:
    """Pods that ended an hour ago, after so many minutes."""
    for lasted in minutes:
        cluster.pod(gpus=1, node=node, ran=60 + lasted, phase="Succeeded")
        cluster.objects[-1]["status"]["containerStatuses"] = [
            {"state": {"terminated": {"finishedAt": stamp(60)}}}
        ]


def test_a_free_cluster_starts_a_run_at_once(tmp_path: Path) -> None:
    cluster = Cluster(0)
    names = cluster.nodes(2)
    history(cluster, names[0], [30] * 6)
    found = asked(cluster, tmp_path, 8)
    assert (found.p10_seconds, found.p90_seconds, found.ended) == (0.0, 0.0, 6)


def test_a_run_waits_for_what_runs_and_for_whom_came_before(tmp_path: Path) -> None:
    """All runs last an hour, of which the running one has done twenty minutes."""
    cluster = Cluster(0)
    (name,) = cluster.nodes(1)
    history(cluster, name, [60] * 6)
    cluster.pod(gpus=8, node=name, ran=20)
    assert asked(cluster, tmp_path, 8).p50_seconds == pytest.approx(2400, abs=60)
    cluster.pod(gpus=8, waited=10)
    found = asked(cluster, tmp_path, 8)
    assert found.p10_seconds == pytest.approx(6000, abs=60)
    assert (found.running, found.ahead) == (1, 1)


def test_who_has_only_just_come_is_ahead_too(tmp_path: Path) -> None:
    """A pod of one minute is no sign of illness yet, but it is before a run of now."""
    cluster = Cluster(0)
    (name,) = cluster.nodes(1)
    history(cluster, name, [60] * 6)
    cluster.pod(gpus=8, node=name, ran=20)
    cluster.pod(gpus=8, waited=1)
    found = asked(cluster, tmp_path, 8)
    assert found.ahead == 1
    assert found.p10_seconds == pytest.approx(6000, abs=60)


def test_jobs_that_kueue_has_not_let_in_yet_are_ahead(tmp_path: Path) -> None:
    """A suspended job waits without pods; one that can never have them is not ahead."""
    cluster = Cluster(0)
    (name,) = cluster.nodes(1)
    history(cluster, name, [60] * 6)
    cluster.pod(gpus=8, node=name, ran=20)
    cluster_queue(cluster, "small", 8)
    kueue_job(cluster, "earlier", 8)
    found = asked(cluster, tmp_path, 8)
    assert found.ahead == 1
    assert found.p50_seconds == pytest.approx(6000, abs=60)
    cluster.objects[-1]["status"]["conditions"][0]["message"] = (
        "insufficient quota for nvidia.com/gpu in flavor all, request > maximum capacity (8 > 4)"
    )
    assert asked(cluster, tmp_path, 8).ahead == 0


def test_the_interval_is_as_wide_as_what_runs_lasted(tmp_path: Path) -> None:
    cluster = Cluster(0)
    (name,) = cluster.nodes(1)
    history(cluster, name, [20, 30, 60, 120, 240, 480, 960])
    cluster.pod(gpus=8, node=name, ran=1)
    found = asked(cluster, tmp_path, 8)
    assert 1000 < found.p10_seconds < found.p50_seconds < found.p90_seconds < 960 * 60


def test_a_run_that_selects_a_kind_of_gpu_waits_for_those_alone(tmp_path: Path) -> None:
    """Both kinds are taken, the A100s for another forty minutes and the H100s for twenty."""
    cluster = Cluster(0)
    h100, a100 = cluster.node(), cluster.node(model="NVIDIA-A100-SXM4-80GB")
    history(cluster, h100, [60] * 6)
    cluster.pod(gpus=8, node=h100, ran=40)
    cluster.pod(gpus=8, node=a100, ran=20)
    for model, minutes in (("NVIDIA-H100-80GB-HBM3", 20), ("NVIDIA-A100-SXM4-80GB", 40)):
        found = asked(cluster, tmp_path, 8, {"nvidia.com/gpu.product": model})
        assert found.p50_seconds == pytest.approx(60 * minutes, abs=60)
        assert found.running == 1
    cluster.pod(gpus=8, waited=10, model="NVIDIA-A100-SXM4-80GB")
    found = asked(cluster, tmp_path, 8, {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"})
    assert found.ahead == 0
    with pytest.raises(InputError, match=r"gpu\.product=B200, which no node with GPUs has"):
        asked(cluster, tmp_path, 8, {"nvidia.com/gpu.product": "B200"})


def test_nodes_whose_taints_a_run_does_not_stand_are_none_of_its_queue(tmp_path: Path) -> None:
    """The free node is another team's; the own one is taken for another forty minutes."""
    cluster = Cluster(0)
    mine = cluster.node()
    cluster.node(taint="team")
    history(cluster, mine, [60] * 6)
    cluster.pod(gpus=8, node=mine, ran=20)
    assert asked(cluster, tmp_path, 8).p50_seconds == pytest.approx(2400, abs=60)
    for tolerated in (Tolerated(key="team", operator="Exists"), Tolerated(operator="Exists")):
        assert asked(cluster, tmp_path, 8, None, (tolerated,)).p90_seconds == 0.0
    other = Tolerated(key="team", value="no")
    assert asked(cluster, tmp_path, 8, None, (other,)).p50_seconds > 2000


@pytest.mark.parametrize("admitted", [True, False])
def test_the_taint_of_a_resource_is_stood_where_the_server_lets_every_pod(
    tmp_path: Path, admitted: bool
) -> None:
    cluster = Cluster(0)
    name = cluster.node(taint="nvidia.com/gpu")
    history(cluster, name, [60] * 6)
    pods = [one for one in cluster.objects if one["kind"] == "Pod"]
    for pod in pods[: None if admitted else 5]:
        pod["spec"]["tolerations"] = [{"key": "nvidia.com/gpu", "operator": "Exists"}]
    if admitted:
        assert asked(cluster, tmp_path, 8).p90_seconds == 0.0
    else:
        with pytest.raises(InputError, match=r"taints \(nvidia\.com/gpu=yes:NoSchedule\); add"):
            asked(cluster, tmp_path, 8)


def test_what_cannot_be_told_is_refused(tmp_path: Path) -> None:
    cluster = Cluster(0)
    (name,) = cluster.nodes(1)
    with pytest.raises(InputError, match="0 runs with GPUs have ended, 5 are needed"):
        asked(cluster, tmp_path, 8)
    history(cluster, name, [20] * 5)
    with pytest.raises(InputError, match="asks for 16 GPUs, which the empty cluster of 8"):
        asked(cluster, tmp_path, 16)


def test_launch_says_the_wait_or_how_to_have_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe, place, state = tmp_path / "gpt.toml", tmp_path / "cluster.toml", tmp_path / "state.json"
    recipe.write_text(RECIPE + "dp = 8\nglobal_batch = 8\n")
    place.write_text(
        "[nodes]\ndevices = 8\ncpus = 8\nmemory_bytes = 64_000_000_000\n"
        '[kubernetes]\nimage = "a"\nclaim = "b"\nqueue = "c"\n'
    )
    cluster = Cluster(0)
    history(cluster, cluster.nodes(2)[0], [30] * 6)
    state.write_text(json.dumps({"items": cluster.objects}))
    line = ["launch", str(recipe), "--on", "kubernetes", "--cluster", str(place), "--dry-run"]
    assert main.run([*line, "--state", str(state)]) == 0
    said = capsys.readouterr()
    assert "wait: about 0 s (0 s to 0 s, 8 times of 10): 0 ahead, 0 running" in said.err
    assert "wait:" not in said.out
    assert main.run(line) == 0
    assert "kubectl get nodes,pods -A -o json > state.json" in capsys.readouterr().err
    assert main.run([*line[:2], "--state", str(state), "--dry-run"]) == 2
    assert "--state is for --on kubernetes and --on slurm" in capsys.readouterr().err
