"""Pods and lines of sacct as jobs: what they were, what is refused, and what goes on when told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from ridgeline.cli import main
from ridgeline.queue.readers.jobs_file import read_jobs
from ridgeline.records.queue_simulation import QueueSimulation

MINUTE = "2026-01-05T10:{:02d}:00Z"
OURS = "submit_seconds,duration_seconds,num_gpus,name\n0,60,1,a\n"
SACCT = (
    "JobID|Submit|ElapsedRaw|State|Partition|AllocTRES\n"
    "1|2026-01-05T10:00:00|600|COMPLETED|gpu|gres/gpu=2\n"
)


def pod(
    name: str, resource: str = "nvidia.com/gpu", count: int = 1, *, created: int = 0,
    started: int = 1, ended: int = 11, labels: dict[str, str] | None = None, phase: str = "Failed",
) -> dict[str, Any]:  # fmt: skip
    """What kubectl prints of a pod that was; moments are minutes after ten."""
    asked = {"name": "c", "resources": {"limits": {resource: str(count)}}}
    finished = {"state": {"terminated": {"finishedAt": MINUTE.format(ended)}}}
    return {
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "team", "labels": labels or {},
                     "creationTimestamp": MINUTE.format(created)},
        "spec": {"containers": [asked]},
        "status": {"phase": phase, "startTime": MINUTE.format(started),
                   "containerStatuses": [finished]},
    }  # fmt: skip


def written(folder: Path, *pods: dict[str, Any]) -> Path:
    path = folder / "pods.json"
    path.write_text(json.dumps({"kind": "List", "items": list(pods)}))
    return path


@pytest.mark.parametrize(
    "resource",
    ["nvidia.com/gpu", "amd.com/gpu", "gpu.intel.com/i915", "gpu.intel.com/xe", "habana.ai/gaudi",
     "habana.com/gaudi",
     "google.com/tpu", "aws.amazon.com/neuron", "huawei.com/Ascend910", "cambricon.com/mlu",
     "metax-tech.com/gpu", "hygon.com/dcu", "mthreads.com/gpu"],
)  # fmt: skip
def test_accelerators_of_every_vendor_are_counted(resource: str, tmp_path: Path) -> None:
    found = read_jobs(written(tmp_path, pod("a", resource, 4), pod("b", "example.com/disk", 4)))
    assert found.jobs.num_gpus.tolist() == [4]
    assert found.notes == ("1 workload without GPUs that we know by name was left out.",)


def test_ranks_are_one_job_and_other_pods_are_their_own(tmp_path: Path) -> None:
    ranks = {"training.kubeflow.org/job-name": "llm", "kueue.x-k8s.io/queue-name": "research"}
    path = written(
        tmp_path,
        pod("llm-0", count=8, created=2, started=5, ended=30, labels=ranks),
        pod("llm-1", count=8, created=3, started=10, ended=31, labels=ranks),
        pod("notebook", created=0, started=1, ended=4),
        pod("slice", "nvidia.com/mig-1g.10gb", created=6, started=7, ended=8),
        pod("goes-on", phase="Running"),
    )
    found = read_jobs(path)
    jobs = found.jobs
    assert jobs.names == ("team/notebook", "training job team/llm", "team/slice")
    assert jobs.submit_seconds.tolist() == [0.0, 120.0, 360.0]
    assert jobs.duration_seconds.tolist() == [180.0, 21 * 60.0, 60.0]
    assert jobs.num_gpus.tolist() == [1, 16, 1]
    assert jobs.queues == ("team", "research", "team")
    assert [one.gpu_slice for one in jobs.wants] == ["", "", "1g.10gb"]
    assert found.notes == ("1 workload that had not ended, or do not say when was left out.",)


def test_pods_in_yaml_are_the_jobs_that_they_are_in_json(tmp_path: Path) -> None:
    objects = [pod("a", count=4), pod("b", started=3, ended=30)]
    in_json = read_jobs(written(tmp_path, *objects)).jobs
    listed, several = tmp_path / "list.yaml", tmp_path / "several.yaml"
    listed.write_text(yaml.safe_dump({"apiVersion": "v1", "items": objects, "kind": "List"}))
    several.write_text("# of last week\n" + yaml.safe_dump_all(objects, explicit_start=True))
    for path in (listed, several):
        found = read_jobs(path).jobs
        assert found.names == in_json.names
        assert found.num_gpus.tolist() == in_json.num_gpus.tolist() == [4, 1]
        assert found.duration_seconds.tolist() == in_json.duration_seconds.tolist()


def claimed(pods: list[dict[str, Any]], form: str) -> list[dict[str, Any]]:
    """Pods whose GPUs are claims: of v1, of v1beta1 and allocated, or shared by all of them."""
    made = []
    for one in pods:
        name = one["metadata"]["name"]
        gpus = int(one["spec"]["containers"][0].pop("resources")["limits"]["nvidia.com/gpu"])
        shared = "all" if form == "shared" else f"{name}-g"
        one["spec"]["resourceClaims"] = [{"name": "g", "resourceClaimTemplateName": "gpus"}]
        one["status"]["resourceClaimStatuses"] = [{"name": "g", "resourceClaimName": shared}]
        exact = {"deviceClassName": "gpu.nvidia.com", "count": gpus}
        request = {"name": "r", "exactly": exact}
        status: dict[str, Any] = {}
        if form == "v1beta1":
            request = {"name": "r", "deviceClassName": "gpu.nvidia.com", "allocationMode": "All"}
            given = {"request": "r", "driver": "gpu.nvidia.com", "pool": "n", "device": "gpu-0"}
            status = {"allocation": {"devices": {"results": [given] * gpus}}}
        made.append({"kind": "ResourceClaim", "metadata": {"name": shared, "namespace": "team"},
                     "spec": {"devices": {"requests": [request]}}, "status": status})  # fmt: skip
    return [*pods, *(made[:1] if form == "shared" else made)]


@pytest.mark.parametrize(("form", "gpus"), [("v1", [4, 2]), ("v1beta1", [4, 2]), ("shared", [4])])
def test_gpus_that_pods_claim_are_counted(form: str, gpus: list[int], tmp_path: Path) -> None:
    objects = claimed([pod("a", count=4), pod("b", count=2, created=1)], form)
    found = read_jobs(written(tmp_path, *objects))
    assert found.jobs.num_gpus.tolist() == gpus


def test_devices_in_slices_are_a_cluster_and_claims_that_are_not_there_are_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    node = {"kind": "Node", "metadata": {"name": "n"}, "status": {"allocatable": {"cpu": "64"}}}
    product = {"basic": {"attributes": {"productName": {"string": "NVIDIA H100 80GB HBM3"}}}}
    devices = [{"name": f"gpu-{number}", **product} for number in range(8)]
    spec = {"driver": "gpu.nvidia.com", "nodeName": "n", "devices": devices}
    listed = {"kind": "ResourceSlice", "metadata": {"name": "n-gpu"}, "spec": spec}
    nodes = tmp_path / "nodes.json"
    nodes.write_text(json.dumps({"kind": "List", "items": [node, listed]}))
    jobs = tmp_path / "jobs.csv"
    jobs.write_text("submit_seconds,duration_seconds,num_gpus,gpu_type\n0,60,8,h100\n")
    words = ["queue", "simulate", str(jobs), "--cluster", str(nodes), "--policy", "fifo", "--json"]
    assert main.run(words) == 0
    assert msgspec.json.decode(capsys.readouterr().out, type=QueueSimulation).gpus == 8
    lost = claimed([pod("a", phase="Running")], "v1")[0]
    assert main.run(["queue", "doctor", str(written(tmp_path, node, listed, lost)), "--json"]) == 0
    notes = json.loads(capsys.readouterr().out)["notes"]
    assert any(one.startswith("devices are claimed by 1 pod of whose claims") for one in notes)


def test_what_counts_as_gpus_and_is_none_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    labels = {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB-MIG-1g.10gb"}
    node = {"kind": "Node", "metadata": {"name": "n", "labels": labels},
            "status": {"allocatable": {"nvidia.com/gpu": "7", "cpu": "64"}}}  # fmt: skip
    part = pod("a", phase="Running")
    part["metadata"]["annotations"] = {"gpu-fraction": "0.5"}
    assert main.run(["queue", "doctor", str(written(tmp_path, node, part)), "--json"]) == 0
    notes = " ".join(json.loads(capsys.readouterr().out)["notes"])
    assert "MIG instances count as GPUs on 1 node (strategy single)" in notes
    assert "parts of GPUs are asked for by 1 pod in an annotation" in notes


@pytest.mark.sweep(every=5)
@pytest.mark.parametrize(
    ("content", "says"),
    [
        (OURS + "-5,60,1,b\n", "line 3: submit_seconds is '-5'; give seconds, 0 or more"),
        (OURS + "5,-60,1,b\n", "line 3: duration_seconds is '-60'; give seconds, 0 or more"),
        (OURS + "5,60,1,a\n", "line 3: job 'a' stands in line 2 already"),
        (OURS + "5,60,1\n", "line 3: 3 cells under 4 columns"),
        (SACCT + SACCT.splitlines()[1], "line 3: the same as line 2; print each job once"),
        (SACCT + "2|2026-01-05T10:00:00|-1|COMPLETED|gpu|gres/gpu=2", "line 3: ElapsedRaw is '-1'"),
        (SACCT + "2|tomorrow|10|COMPLETED|gpu|gres/gpu=2", "line 3: Submit is 'tomorrow'"),
        (json.dumps([pod("a"), pod("a")]), "Pod team/a is given twice; leave one out"),
        (json.dumps([pod("a"), pod("b", started=9, ended=3)]), "Pod team/b ends before it starts"),
        (json.dumps([pod("a"), pod("b", count=-1)]), "nvidia.com/gpu is '-1', which is no amount"),
    ],
)  # fmt: skip
def test_a_row_that_is_no_job_is_one_line_and_left_out_when_told(
    content: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "jobs"
    path.write_text(content)
    line = ["queue", "simulate", str(path), "--gpus", "8", "--policy", "fifo"]
    assert main.run(line) == 2
    said = capsys.readouterr().err
    assert says in said
    assert said.count("\n") == 1
    assert main.run([*line, "--skip-bad", "--json"]) == 0
    found = msgspec.json.decode(capsys.readouterr().out, type=QueueSimulation)
    assert found.jobs == 1
    assert any(says in note and note.startswith("1 row that is no") for note in found.notes)


def test_a_kind_of_gpu_that_no_node_has_is_one_line_and_left_out_when_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, nodes = tmp_path / "jobs.csv", tmp_path / "cluster.toml"
    nodes.write_text('[[nodes]]\ncount = 1\ngpus = 8\ngpu_type = "h100"\n')
    path.write_text("submit_seconds,duration_seconds,num_gpus,gpu_type\n0,60,1,h100\n1,60,1,b999\n")
    line = ["queue", "simulate", str(path), "--cluster", str(nodes), "--policy", "fifo"]
    assert main.run(line) == 2
    assert "job line 3 asks for 1 GPU of type b999, which" in capsys.readouterr().err
    assert main.run([*line, "--skip-unfit", "--json"]) == 0
    found = msgspec.json.decode(capsys.readouterr().out, type=QueueSimulation)
    assert (found.jobs, found.left_out) == (1, 1)


def test_shards_of_gpus_that_slurm_gives_are_told_apart_from_no_gpus(tmp_path: Path) -> None:
    path = tmp_path / "sacct.txt"
    line = "{}|2026-01-05T10:00:00|600|COMPLETED|gpu|cpu=4,{}\n"
    path.write_text(
        SACCT.splitlines()[0] + "\n" + line.format(1, "gres/gpu=1") + line.format(2, "mem=1G")
        + line.format(3, "gres/shard=2,gres/shard:a100=2")
    )  # fmt: skip
    assert read_jobs(path).notes == (
        "1 job without GPUs was left out.",
        "1 job of shards of GPUs, whose size is not told, was left out.",
    )


@pytest.mark.parametrize(
    ("fields", "first", "cores", "gibibytes"),
    [
        ("AllocTRES", "billing=2,cpu=2,gres/gpu=1,mem=6G,node=1", 2.0, 6.0),
        ("AllocTRES", "cpu=32,mem=256000M,gres/gpu:a100=4,gres/gpu=4", 32.0, 250.0),
        ("AllocTRES", "cpu=8,mem=187.50G,node=1,gres/gpu=1", 8.0, 187.5),
        ("AllocGRES|AllocCPUS|ReqMem|NNodes", "gpu:2|16|4Gn|2", 16.0, 8.0),
        ("AllocGRES|NCPUS|ReqMem", "gpu:2|16|2048Mc", 16.0, 32.0),
        ("AllocGRES|NCPUS", "gpu:2|3", 3.0, 0.0),
    ],
)  # fmt: skip
def test_cores_and_memory_of_a_job_of_slurm_are_read(
    fields: str, first: str, cores: float, gibibytes: float, tmp_path: Path
) -> None:
    path = tmp_path / "sacct.txt"
    path.write_text(f"JobID|Submit|ElapsedRaw|{fields}\n7|2026-01-05T10:00:00|600|{first}\n")
    (wants,) = read_jobs(path).jobs.wants
    assert (wants.cpus, wants.memory_bytes / 2**30) == (cores, gibibytes)


def test_a_job_of_slurm_ran_from_its_start_to_its_end_where_nothing_says_how_long(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "sacct.txt"
    head = "JobID|Submit|Start|End|State|AllocTRES|\n"
    array = "7_1|2026-01-05T10:00:00|2026-01-05T10:05:00|2026-01-05T11:05:00|TIMEOUT|gres/gpu=2|\n"
    rest = "7_[2-9]|2026-01-05T10:00:00|Unknown|Unknown|PENDING|gres/gpu=2|\n"
    path.write_text(head + array + rest)
    found = read_jobs(path)
    assert found.jobs.duration_seconds.tolist() == [3600.0]
    assert found.notes == ("1 job waiting or running was left out.",)
    path.write_text(head + array.replace("T11:05", "T09:05"))
    assert main.run(["queue", "simulate", str(path), "--gpus", "8"]) == 2
    assert "line 2: it ends before it starts" in capsys.readouterr().err


def test_marks_in_names_of_jobs_are_no_ends_of_fields(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "sacct.txt"
    line = "JobID{0}JobName{0}Submit{0}ElapsedRaw{0}AllocTRES\n7{0}grep a|b{0}{1}{0}60{0}{2}\n"
    path.write_text(line.format("|", "2026-01-05T10:00:00", "cpu=2,gres/gpu=2"))
    assert read_jobs(path).jobs.num_gpus.tolist() == [2.0]
    path.write_text(line.format(",", "2026-01-05T10:00:00", "cpu=2,gres/gpu=2"))
    assert main.run(["queue", "simulate", str(path), "--gpus", "8"]) == 2
    assert "line 2: more fields than the first line" in capsys.readouterr().err


def test_replicas_of_shared_gpus_are_no_whole_ones(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shared = pod("a", "nvidia.com/gpu.shared")
    found = read_jobs(written(tmp_path, shared, pod("b")))
    assert found.jobs.names == ("team/b",)
    assert found.notes[0].startswith("1 workload of replicas of shared GPUs")
    node = {
        "kind": "Node",
        "metadata": {"name": "n", "labels": {"nvidia.com/gpu.replicas": "4"}},
        "status": {"allocatable": {"nvidia.com/gpu.shared": "32", "cpu": "64"}},
    }
    assert main.run(["queue", "doctor", str(written(tmp_path, node)), "--json"]) == 0
    notes = json.loads(capsys.readouterr().out)["notes"]
    assert any("counted there as 32 GPUs is replicas of 8 GPUs" in one for one in notes)
    gpus = "".join(f"GPU-{number},4,46068,100,NVIDIA-L40S,0,true:" for number in range(2))
    by_hami = {"name": "n", "annotations": {"hami.io/node-nvidia-register": gpus}}
    whole = {"allocatable": {"nvidia.com/gpu": "8", "cpu": "64"}}
    node |= {"metadata": by_hami, "status": whole}
    assert main.run(["queue", "doctor", str(written(tmp_path, node)), "--json"]) == 0
    notes = json.loads(capsys.readouterr().out)["notes"]
    assert any("counted there as 8 GPUs is replicas of 2 GPUs" in one for one in notes)


def test_a_mig_instance_of_slurm_is_a_job_of_that_slice(tmp_path: Path) -> None:
    path = tmp_path / "sacct.txt"
    lines = [
        "1|2026-01-05T10:00:00|600|COMPLETED|gpu|cpu=4,gres/gpu:nvidia_a100_1g.5gb=1,gres/gpu=1",
        "2|2026-01-05T10:00:00|600|COMPLETED|gpu|gres/gpu:a100_3g.20gb=2",
        "3|2026-01-05T10:00:00|600|COMPLETED|gpu|gres/gpu:1g.10gb+me=1",
    ]
    path.write_text("\n".join([SACCT.splitlines()[0], *lines]))
    found = read_jobs(path)
    assert [one.gpu_slice for one in found.jobs.wants] == ["1g.5gb", "1g.10gb+me"]
    assert found.notes == ("1 job of several MIG instances was left out.",)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"JobID           JobName  Partition    State\n------------ -----\n1 a gpu COMPLETED\n",
         "sacct's columns of fixed width"),
        (b'{"meta": {"plugin": {"type": "openapi/dbv0.0.39"}}, "jobs": [{"job_id": 1}]}',
         "nothing that sacct, squeue or sinfo print with --json"),
        (b'{"jobs": [{"job_id": 1, "job_state": ["RUNNING"]}]}', "what squeue --json prints"),
        (b"JOBID PARTITION NAME USER ST TIME NODES NODELIST(REASON)\n1 gpu a b R 1:00 1 n1\n",
         "what squeue or scontrol prints, of jobs that have not ended"),
        (b"ResNet-18\tpython main.py\t1\t17424\t0.0\t1\nA3C\tpython a3c.py\t1\t13020\t7.5\t1\n",
         "its first line holds values such as 1, not names"),
        (b"; Version: 2.2\n; Computer: IBM SP2\n1 0 10 60 4 -1 -1 4 60 -1 1 1 1 1 1 1 -1 -1\n",
         "the Standard Workload Format, which counts processors"),
        (b"NAME    READY   STATUS    RESTARTS   AGE\nllm-0   1/1     Running   0          5m\n",
         "kubectl's table"),
        (b"apiVersion: v1\nitems:\n- apiVersion: v1\n  kind: Pod\n", "is no Kubernetes object"),
        (b"apiVersion: v1\nkind: List\nkind: Pod\n", "printed:3: 'kind' is given twice"),
        (b"apiVersion: v1\nitems: [\n", "printed:3: not YAML"),
        ("JobID|Submit|ElapsedRaw|State|AllocTRES\n".encode("utf-16"), "UTF-16"),
        (b'{"kind": "Pod", "metadata": {}}\n{"kind": "Pod", "metadata": {}}\n', "not JSON"),
    ],
)  # fmt: skip
def test_what_other_commands_print_is_one_line_with_the_command_to_take(
    content: bytes, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "printed"
    path.write_bytes(content)
    assert main.run(["queue", "simulate", str(path), "--gpus", "8"]) == 2
    said = capsys.readouterr().err
    assert says in said
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    ("table", "submits", "runs", "gpus"),
    [
        (("Job ID;Submitted At;Started At;Finished At;GPUs Requested\n"
          "1;01.03.2026 09:15;01.03.2026 09:20;01.03.2026 12:20;8\n"
          "2;01.03.2026 09:17;01.03.2026 12:20;01.03.2026 13:20;4\n"),
         [0, 120], [10800, 3600], [8, 4]),
        ("id,createdAt,runtime_minutes,gpu_count\na,2026-03-01T09:15:00+01:00,90,8\n",
         [0], [5400], [8]),
        ("job,submit,walltime,n_gpus\na,1772352900,01:30:00,8\nb,1772352960,1 day 0:00:01,16\n",
         [0, 60], [5400, 86401], [8, 16]),
        ("timestamp\tDuration (ms)\tgpus\n1772352900000\t5400000\t8\n1772352960000\t1\t1\n",
         [0, 60], [5400, 0.001], [8, 1]),
        ("job,arrival_time,service_time,gpu_demand\n1,5,100,2\n", [0], [100], [2]),
        ("name,submit_time,duration_hours,nodes,gpus_per_node\na,2026-03-01 09:15,2.5,4,8\n",
         [0], [9000], [32]),
        ("name,submit_s,duration_s,num_gpus,nodes,gpus_per_node\na,0,60,32,4,8\n",
         [0], [60], [32]),
    ],
)  # fmt: skip
def test_columns_are_known_by_what_people_call_them(
    table: str, submits: list[float], runs: list[float], gpus: list[float], tmp_path: Path
) -> None:
    path = tmp_path / "own.csv"
    path.write_text(table)
    found = read_jobs(path).jobs
    assert found.submit_seconds.tolist() == submits
    assert found.duration_seconds.tolist() == pytest.approx(runs)
    assert found.num_gpus.tolist() == gpus


def test_columns_are_those_that_the_user_names(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "own.csv"
    path.write_text("when,took,cards,duration\n0,90,2,7\n60000,30,4,7\n")
    words = ["queue", "simulate", str(path), "--gpus", "8", "--policy", "fifo", "--json"]
    named = ["--column", "submit_seconds=when:ms", "--column", "num_gpus=cards",
             "--column", "duration_seconds=took:min"]  # fmt: skip
    assert main.run([*words, *named]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["policies"][0]["mean_completion_seconds"] == 3600.0
    assert "Numbers of submit_seconds are taken as milliseconds." in answer["notes"]
    for wrong, says in [
        ("gpus=cards", "give NAME=COLUMN with a name of name, submit_seconds"),
        ("num_gpus=card", "no column card, which --column names; it has when, took, cards"),
        ("num_gpus=cards:ms", "ms is no unit of a time"),
    ]:
        assert main.run([*words, *named, "--column", wrong]) == 2
        assert says in capsys.readouterr().err


def test_times_that_can_hardly_be_seconds_are_told(tmp_path: Path) -> None:
    path = tmp_path / "own.csv"
    path.write_text("submit_time,duration,num_gpu\n0,2868294000,1\n201694000,4472936000,8\n")
    assert any("if these are no seconds, say it" in one for one in read_jobs(path).notes)
