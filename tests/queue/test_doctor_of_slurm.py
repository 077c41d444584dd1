"""`ridgeline queue doctor` on what Slurm prints: planted faults, healthy clusters, bad input."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.queue.slurm_clusters import FAULTS, HEALTHY, NOW, SlurmCluster

from ridgeline.cli import main
from ridgeline.records.queue_finding import QueueDiagnosis


def written(cluster: SlurmCluster, folder: Path) -> list[str]:
    (folder / "sinfo.txt").write_text(cluster.sinfo())
    (folder / "squeue.txt").write_text(cluster.squeue())
    return [str(folder / "sinfo.txt"), str(folder / "squeue.txt")]


def diagnosed(words: list[str], capsys: pytest.CaptureFixture[str]) -> QueueDiagnosis:
    assert main.run(["queue", "doctor", *words, "--json"]) == 0
    return msgspec.json.decode(capsys.readouterr().out, type=QueueDiagnosis)


def test_of_nine_faults_of_slurm_every_one_is_named_first_with_its_cure_in_slurms_words(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    missed = {}
    for name, (cause, plant) in FAULTS.items():
        cluster = SlurmCluster()
        plant(cluster)
        found = diagnosed(written(cluster, tmp_path), capsys)
        if [one.cause for one in found.findings][:1] != [cause]:
            missed[name] = [one.cause for one in found.findings]
            continue
        first = found.findings[0]
        assert first.not_simulated or "Slurm backfills" in first.worth.assumed  # type: ignore[union-attr]
        assert "{" not in first.cure + first.setting
        assert "apiVersion" not in first.setting
    assert not missed


def test_of_six_healthy_clusters_of_slurm_none_is_called_ill(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for plant in HEALTHY.values():
        cluster = SlurmCluster()
        plant(cluster)
        assert diagnosed(written(cluster, tmp_path), capsys).findings == []


def as_json(cluster: SlurmCluster) -> tuple[dict[str, Any], dict[str, Any]]:
    """The same as sinfo and squeue print it with --json, of release 24.05."""

    def number(value: float) -> dict[str, Any]:
        return {"set": True, "infinite": False, "number": round(value)}

    nodes = []
    for line in cluster.nodes:
        name, gres, state, partition, cpus, memory = line.split("|")
        nodes.append({"name": name, "gres": gres.replace("(null)", ""), "state": [state.upper()],
                      "partitions": [partition.rstrip("*")], "cpus": int(cpus),
                      "real_memory": int(memory)})  # fmt: skip
    jobs = []
    for line in cluster.jobs:
        one, state, partition, count, tres, _, _, where, reason, rank, since, start = line.split(
            "|"
        )
        begun = 0.0 if start == "N/A" else NOW.fromisoformat(f"{start}+00:00").timestamp()
        jobs.append({"job_id": int(one), "job_state": [state], "partition": partition,
                     "node_count": number(int(count)), "tres_req_str": tres,
                     "tres_alloc_str": tres if where else "", "nodes": where,
                     "state_reason": reason, "priority": number(int(rank)),
                     "submit_time": number(NOW.fromisoformat(f"{since}+00:00").timestamp()),
                     "start_time": number(begun),
                     "time_limit": number(10080)})  # fmt: skip
    return {"nodes": nodes}, {"jobs": jobs, "last_update": number(NOW.timestamp())}


@pytest.mark.parametrize("name", ["a QOS's limit", "cores taken by jobs without GPUs"])
def test_json_of_slurm_says_what_its_text_says(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = SlurmCluster()
    FAULTS[name][1](cluster)
    by_text = diagnosed(written(cluster, tmp_path), capsys)
    words = []
    for kind, content in zip(("sinfo", "squeue"), as_json(cluster), strict=True):
        (tmp_path / f"{kind}.json").write_text(json.dumps(content))
        words.append(str(tmp_path / f"{kind}.json"))
    by_json = diagnosed(words, capsys)
    assert by_json.findings == by_text.findings
    assert by_json.gpus == by_text.gpus


def test_runs_that_sacct_tells_of_are_what_times_are_drawn_from(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = SlurmCluster()
    FAULTS["drained nodes"][1](cluster)
    sacct = tmp_path / "sacct.txt"
    lines = [f"{number}|2026-10-0{number}T10:00:00|{3600 * number * number}|COMPLETED|gpu|"
             "gres/gpu=8" for number in range(1, 8)]  # fmt: skip
    sacct.write_text("JobID|Submit|ElapsedRaw|State|Partition|AllocTRES\n" + "\n".join(lines))
    worth = diagnosed([*written(cluster, tmp_path), str(sacct)], capsys).findings[0].worth
    assert worth is not None
    assert worth.drawings == 20
    assert "the 7 runs" in worth.assumed


def test_half_a_state_of_slurm_or_a_mixed_one_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sinfo, squeue = written(SlurmCluster(["n0|gpu:8|idle|gpu*|64|512000"]), tmp_path)
    kube, samples = tmp_path / "state.json", tmp_path / "dcgm.csv"
    kube.write_text('{"kind": "List", "items": []}')
    samples.write_text("namespace,pod,utilisation\n")
    for words, line in (
        ([sinfo], "what squeue prints is lacking"),
        ([squeue], "what sinfo prints is lacking"),
        ([sinfo, sinfo], "a second file of sinfo"),
        ([sinfo, squeue, str(kube)], "state.json: nothing that"),
        ([sinfo, squeue, "--dcgm", str(samples)], "give samples as CSV with the columns hpc_job"),
    ):
        assert main.run(["queue", "doctor", *words]) == 2
        said = capsys.readouterr().err.strip()
        assert line in said
        assert "\n" not in said


@pytest.mark.parametrize(
    ("columns", "rows", "idle"),
    [
        ("Hostname,gpu,hpc_job", ["{busy},0,1000", "{idle},0,1001"], ["1001/1"]),
        ("gpu,hpc_job", ["0,1000", "0,1001"], ["1001/0", "1001/1"]),
        ("Hostname,gpu", ["{busy},0", "{idle},0"], ["1001/1"]),
    ],
)
def test_a_job_of_slurm_that_leaves_its_gpus_idle_is_told_by_samples_of_it_or_of_its_node(
    columns: str, rows: list[str], idle: list[str], tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """A job of two nodes of which one was measured to be idle, beside one that works."""
    cluster = SlurmCluster()
    names = [cluster.node(state="allocated") for _ in range(3)]
    cluster.runs(names[0], 8)
    cluster.runs(f"{names[1]},{names[2]}", 16, count=2)
    samples = tmp_path / "dcgm.csv"
    filled = [one.format(busy=names[0], idle=f"{names[2]}.cluster:9400") for one in rows]
    lines = [f"{one},{used}" for one, used in zip(filled, (90, 1), strict=True)] * 3
    samples.write_text("\n".join([f"{columns},DCGM_FI_DEV_GPU_UTIL", *lines]) + "\n")
    words = [*written(cluster, tmp_path), "--dcgm", str(samples)]
    (found,) = diagnosed(words, capsys).findings
    assert (found.cause, found.where) == ("idle-gpus", idle)
    assert found.setting.startswith("scancel 1001\n")


def test_gpus_that_nodes_have_given_away_to_jobs_that_were_not_given_count_as_in_use(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What `squeue -u me` leaves out is not free for the job that waits."""
    cluster = SlurmCluster()
    cluster.runs(cluster.node(), 2)
    cluster.waits(8)
    sinfo, squeue = written(cluster, tmp_path)
    fields = "HOSTNAMES GRES GRES_USED STATE PARTITION\n"
    node = "gpu:h100:8(S:0-1) gpu:h100:{}(IDX:0-6) mixed gpu*\n"
    Path(sinfo).write_text(f"{fields}n000 {node.format(7)}n001 {node.format(3)}")
    found = diagnosed([sinfo, squeue], capsys)
    assert (found.gpus, found.allocated_gpus, found.findings) == (16, 10, [])
    assert any("8 GPUs more are in use" in one for one in found.notes)
    Path(sinfo).write_text(f"{fields}n000 {node.format(2)}n001 {node.format(0)}")
    assert diagnosed([sinfo, squeue], capsys).allocated_gpus == 2
