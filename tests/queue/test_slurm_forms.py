"""Slurm's JSON and `scontrol show`: the same jobs, nodes and queue as its tables tell."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ridgeline.cli import main
from ridgeline.queue.readers.cluster_nodes import read_cluster
from ridgeline.queue.readers.jobs_file import read_jobs
from ridgeline.queue.readers.slurm_now import read_slurm_now
from ridgeline.records.queue_simulation import QueueSimulation

NOW = 1_767_610_800  # 2026-01-05T11:00:00Z


def number(value: int | None, *, infinite: bool = False) -> dict[str, Any]:
    """A number as releases since 23.02 print it."""
    return {"set": value is not None or infinite, "infinite": infinite, "number": value or 0}


def tres(gpus: int, kind: str = "a100", cpus: int = 8, mebibytes: int = 65_536) -> list[Any]:
    return [
        {"type": "cpu", "name": "", "id": 1, "count": cpus},
        {"type": "mem", "name": "", "id": 2, "count": mebibytes},
        {"type": "node", "name": "", "id": 4, "count": 1},
        {"type": "billing", "name": "", "id": 5, "count": cpus},
        {"type": "gres", "name": "gpu", "id": 1001, "count": gpus},
        {"type": "gres", "name": f"gpu:{kind}", "id": 1002, "count": gpus},
    ]


def ended(
    job: int, gpus: int, *, state: object = None, kind: str = "a100", **more: object
) -> dict[str, Any]:
    """One job of `sacct --json`."""
    return {
        "job_id": job, "name": "train", "partition": "gpu", "allocation_nodes": 1,
        "cluster": "alpha", "constraints": "", "nodes": "gpu01",
        "state": {"current": state or ["COMPLETED"], "reason": "None"},
        "time": {"elapsed": 600, "submission": NOW + 60 * job, "start": NOW, "end": NOW + 600},
        "tres": {"allocated": tres(gpus, kind), "requested": tres(gpus, kind)},
        "array": {"job_id": 0, "task_id": number(None)},
        "het": {"job_id": 0, "job_offset": number(None)}, "steps": [], **more,
    }  # fmt: skip


def written(folder: Path, name: str, **content: object) -> Path:
    path = folder / name
    path.write_text(json.dumps({"meta": {"slurm": {"release": "24.11.1"}}, **content}))
    return path


def test_jobs_in_json_are_those_of_the_table(tmp_path: Path) -> None:
    array = {"array": {"job_id": 7, "task_id": number(2)}}
    offset = {"het": {"job_id": 9, "job_offset": number(0)}}
    path = written(
        tmp_path, "sacct.json",
        jobs=[
            ended(1, 4), ended(2, 2, state="COMPLETED"), ended(8, 1, **array),
            ended(9, 8, **offset),
            ended(10, 4, het={"job_id": 9, "job_offset": number(1)},
                  time={"elapsed": 600, "submission": NOW + 540}),
            ended(11, 1, kind="nvidia_a100_1g.5gb"), ended(12, 1, state=["RUNNING"]),
            ended(13, 0, tres={"allocated": tres(0)[:4], "requested": tres(0)[:4]}),
        ],
        errors=[], warnings=[],
    )  # fmt: skip
    found = read_jobs(path)
    jobs = found.jobs
    assert jobs.names == ("1", "2", "7_2", "9", "11")
    assert jobs.num_gpus.tolist() == [4, 2, 1, 12, 1]
    assert jobs.submit_seconds.tolist() == [0.0, 60.0, 420.0, 480.0, 600.0]
    assert set(jobs.duration_seconds.tolist()) == {600.0}
    assert [one.gpu_slice for one in jobs.wants] == ["", "", "", "", "1g.5gb"]
    assert (jobs.wants[0].cpus, jobs.wants[0].memory_bytes) == (8.0, 64 * 2**30)
    assert jobs.wants[0].gpu_type == "a100"
    assert found.notes == (
        "1 job without GPUs was left out.", "1 job waiting or running was left out."
    )  # fmt: skip


def queued(job: int, state: str, gpus: int, **more: object) -> dict[str, Any]:
    """One job of `squeue --json`."""
    return {
        "job_id": job, "job_state": [state], "partition": "gpu", "node_count": number(1),
        "tres_req_str": f"cpu=8,mem=64G,node=1,billing=8,gres/gpu={gpus}",
        "tres_alloc_str": f"cpu=8,mem=64G,gres/gpu={gpus}" if state == "RUNNING" else "",
        "time_limit": number(120), "nodes": "gpu01" if state == "RUNNING" else "",
        "state_reason": "None" if state == "RUNNING" else "Resources",
        "priority": number(job), "submit_time": number(NOW - 3600),
        "start_time": number(NOW - 1200 if state == "RUNNING" else 0), **more,
    }  # fmt: skip


QUEUED = [
    queued(1, "RUNNING", 8),
    queued(2, "PENDING", 2, priority=number(20)),
    queued(3, "PENDING", 1, array_task_string="3-8", array_max_tasks=number(2)),
    queued(4, "PENDING", 8, state_reason="Dependency"),
    queued(5, "PENDING", 4, priority=number(99), time_limit=number(None, infinite=True)),
]
NODES = [
    {"name": "gpu01", "gres": "gpu:a100:8(S:0-1)", "state": ["MIXED"], "partitions": ["gpu"],
     "cpus": 128, "real_memory": 1_048_576},
    {"name": "gpu02", "gres": "gpu:a100:8(S:0-1)", "state": ["IDLE", "DRAIN"],
     "partitions": ["gpu"], "cpus": 128, "real_memory": 1_048_576},
    {"name": "login1", "gres": "", "state": ["IDLE"], "partitions": ["cpu"], "cpus": 8,
     "real_memory": 1024},
]  # fmt: skip
SINFO = [
    {"nodes": {"nodes": ["gpu01"]}, "gres": {"total": "gpu:a100:8(S:0-1)", "used": "gpu:a100:8"},
     "node": {"state": ["MIXED"]}, "partition": {"name": "gpu"},
     "cpus": {"minimum": 128, "maximum": 128}, "memory": {"minimum": 1_048_576}},
    {"nodes": {"nodes": ["gpu02"]}, "gres": {"total": "gpu:a100:8(S:0-1)", "used": ""},
     "node": {"state": ["IDLE", "DRAIN"]}, "partition": {"name": "gpu"},
     "cpus": {"minimum": 128, "maximum": 128}, "memory": {"minimum": 1_048_576}},
]  # fmt: skip
SHOWN_NODES = """\
NodeName=gpu01 Arch=x86_64 CoresPerSocket=64
   CPUAlloc=64 CPUEfctv=128 CPUTot=128 CPULoad=60.03
   AvailableFeatures=a100,ib
   ActiveFeatures=a100,ib
   Gres=gpu:a100:8(S:0-1)
   NodeAddr=gpu01 NodeHostName=gpu01 Version=23.11.4
   OS=Linux 5.14.0-362.el9.x86_64 #1 SMP PREEMPT_DYNAMIC
   RealMemory=1048576 AllocMem=524288 FreeMem=400000 Sockets=2 Boards=1
   State=MIXED ThreadsPerCore=1 TmpDisk=0 Weight=1 Owner=N/A MCS_label=N/A
   Partitions=gpu
   BootTime=2026-01-01T10:00:00 SlurmdStartTime=2026-01-01T10:02:00
   CfgTRES=cpu=128,mem=1T,billing=128,gres/gpu=8
   AllocTRES=cpu=64,mem=512G,gres/gpu=8

NodeName=gpu02 Arch=x86_64 CoresPerSocket=64
   CPUAlloc=0 CPUTot=128 Gres=gpu:a100:8(S:0-1) RealMemory=1048576
   State=IDLE+DRAIN Partitions=gpu
   Reason=bad DIMM in slot 3 [root@2026-01-04T10:00:00]
"""
SHOWN_JOBS = """\
JobId=1 JobName=my run with blanks
   UserId=u(1000) GroupId=g(1000) MCS_label=N/A
   Priority=1 Nice=0 Account=a QOS=normal
   JobState=RUNNING Reason=None Dependency=(null)
   RunTime=00:20:00 TimeLimit=02:00:00 TimeMin=N/A
   SubmitTime=2026-01-05T10:00:00 EligibleTime=2026-01-05T10:00:00
   StartTime=2026-01-05T10:40:00 EndTime=2026-01-05T12:40:00 Deadline=N/A
   Partition=gpu AllocNode:Sid=login1:77
   NodeList=gpu01
   NumNodes=1 NumCPUs=8 NumTasks=1 CPUs/Task=8 ReqB:S:C:T=0:0:*:*
   ReqTRES=cpu=8,mem=64G,node=1,billing=8,gres/gpu=8
   AllocTRES=cpu=8,mem=64G,node=1,billing=8,gres/gpu=8

JobId=2 JobName=b
   Priority=20 JobState=PENDING Reason=Resources RunTime=00:00:00 TimeLimit=02:00:00
   SubmitTime=2026-01-05T10:00:00 Partition=gpu NodeList= NumNodes=1-1
   ReqTRES=cpu=8,mem=64G,node=1,gres/gpu=2 AllocTRES=(null)

JobId=3 ArrayJobId=3 ArrayTaskId=3-8 ArrayTaskThrottle=2 JobName=c
   Priority=3 JobState=PENDING Reason=Resources RunTime=00:00:00 TimeLimit=02:00:00
   SubmitTime=2026-01-05T10:00:00 Partition=gpu NodeList= NumNodes=1-1
   ReqTRES=cpu=8,mem=64G,node=1,gres/gpu=1 AllocTRES=(null)

JobId=4 JobName=d
   Priority=99 JobState=PENDING Reason=Dependency RunTime=00:00:00 TimeLimit=02:00:00
   SubmitTime=2026-01-05T10:00:00 Partition=gpu NodeList= NumNodes=1-1
   ReqTRES=cpu=8,node=1,gres/gpu=8 AllocTRES=(null)

JobId=5 JobName=e
   Priority=99 JobState=PENDING Reason=Resources RunTime=00:00:00 TimeLimit=UNLIMITED
   SubmitTime=2026-01-05T10:00:00 Partition=gpu NodeList= NumNodes=1-1
   ReqTRES=cpu=8,node=1,gres/gpu=4 AllocTRES=(null)
"""


@pytest.mark.parametrize("form", ["json", "newer json", "scontrol"])
def test_the_queue_of_now_is_the_same_in_every_form(form: str, tmp_path: Path) -> None:
    sacct = written(tmp_path, "sacct.json", jobs=[ended(job, 8) for job in range(90, 96)])
    nodes, jobs = tmp_path / "nodes.txt", tmp_path / "jobs.txt"
    nodes.write_text(SHOWN_NODES)
    jobs.write_text(SHOWN_JOBS)
    if form != "scontrol":
        jobs = written(tmp_path, "squeue.json", jobs=QUEUED, last_update=number(NOW))
        newer = {"sinfo": SINFO} if form == "newer json" else {"nodes": NODES}
        nodes = written(tmp_path, "sinfo.json", **newer)
    found = read_slurm_now([sacct, nodes, jobs], partition="gpu", gpu_type="a100")
    assert found.node_gpus == (8,)
    assert [(one.num_gpus, one.age_seconds, one.limit_seconds) for one in found.running] == [
        (8, 1200.0, 7200.0)
    ]
    assert [(one.num_gpus, one.limit_seconds) for one in found.waiting] == [
        (4, None), (2, 7200.0), (1, 7200.0), (1, 7200.0)
    ]  # fmt: skip
    assert found.ended_seconds == (600.0,) * 6


@pytest.mark.parametrize("form", ["json", "scontrol", "table"])
def test_nodes_of_slurm_are_a_cluster_with_cores_and_memory(
    form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path, "nodes.json", nodes=NODES)
    if form != "json":
        table = "NODELIST|GRES|STATE|PARTITION|CPUS|MEMORY\ngpu01|gpu:a100:8|mixed|gpu|128|1048576"
        path = tmp_path / "nodes.txt"
        path.write_text(SHOWN_NODES if form == "scontrol" else table)
    (group,) = read_cluster(path).nodes
    assert (group.count, group.gpus, group.gpu_type) == (1, 8, "a100")
    assert (group.cpus, group.memory_gibibytes) == (128.0, 1024.0)
    sacct = written(tmp_path, "sacct.json", jobs=[ended(1, 8), ended(2, 4)])
    words = ["queue", "simulate", str(sacct), "--cluster", str(path), "--policy", "fifo", "--json"]
    assert main.run(words) == 0
    found = msgspec.json.decode(capsys.readouterr().out, type=QueueSimulation)
    assert (found.jobs, found.gpus) == (2, 8)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ('{"jobs": [{"job_id": 1, "job_state": ["RUNNING"]}]}', "what squeue prints, and no nodes"),
        ('{"nodes": []}', "no node with a GPU in GRES"),
        ('{"nodes": 4}', "nothing that sacct, squeue or sinfo print"),
        ('{"sinfo": [{"nodes": {"nodes": ["gpu[1-"]}, "gres": {"total": "gpu:8"}}]}',
         "sinfo 0: NODELIST is 'gpu[1-', no list of nodes"),
        ('{"nodes": [', "not JSON"),
    ],
)  # fmt: skip
def test_what_is_no_nodes_of_slurm_is_one_line(
    content: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, sacct = tmp_path / "nodes", written(tmp_path, "sacct.json", jobs=[ended(1, 8)])
    path.write_text(content)
    assert main.run(["queue", "simulate", str(sacct), "--cluster", str(path)]) == 2
    said = capsys.readouterr().err
    assert says in said
    assert said.count("\n") == 1
