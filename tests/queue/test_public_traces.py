"""Traces of jobs and nodes as others published them, by the examples of their documentation."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from ridgeline.cli import main
from ridgeline.queue.jobs import Jobs
from ridgeline.queue.readers.jobs_file import read_jobs
from ridgeline.records.queue_simulation import QueueSimulation

FOLDER = Path(__file__).with_name("public_traces")
"""Small files in the form of each, by the examples of its documentation."""


def text(name: str) -> str:
    return (FOLDER / name).read_text()


def read(content: str, folder: Path) -> Jobs:
    path = folder / "jobs"
    path.write_text(content)
    return read_jobs(path).jobs


def test_the_seconds_that_a_job_waited_in_a_queue_are_no_name_of_a_queue(tmp_path: Path) -> None:
    assert read(text("acme_seren.csv"), tmp_path).queues == ("", "")
    assert read(text("helios.csv"), tmp_path).queues == ("vcJkd", "vchbv")
    assert read(text("helios.csv").replace("249,0", "249,3"), tmp_path).queues == ("0", "3")


def test_a_job_held_its_gpus_from_its_start_to_its_end_whatever_its_duration_tells(
    tmp_path: Path,
) -> None:
    path = tmp_path / "kalos.csv"
    path.write_text(text("acme_kalos.csv"))
    found = read_jobs(path)
    assert found.jobs.duration_seconds.tolist() == [8.0]
    assert found.notes[0].startswith("1 job ran from start to end for another time")
    assert read(text("acme_seren.csv"), tmp_path).duration_seconds.tolist() == [117.0, 2693.0]


def test_tables_of_slurms_database_are_read_with_the_gpus_that_it_lists(tmp_path: Path) -> None:
    path = tmp_path / "slurm-log.csv"
    path.write_text(text("mit_supercloud.csv"))
    found = read_jobs(path)
    assert found.jobs.num_gpus.tolist() == [2, 4]
    assert found.jobs.submit_seconds.tolist() == [0.0, 10.0]
    assert found.jobs.duration_seconds.tolist() == [3600.0, 7200.0]
    assert "1 job without GPUs was left out." in found.notes
    jobs = read(text("cineca_pm100.csv"), tmp_path)
    assert jobs.num_gpus.tolist() == [4, 8]
    assert jobs.duration_seconds.tolist() == [3600.0, 7200.0]


def test_what_each_of_several_workers_asks_for_is_not_all(tmp_path: Path) -> None:
    jobs = read(text("alibaba_spot_jobs.csv"), tmp_path)
    assert jobs.num_gpus.tolist() == [1, 16, 16]
    assert [one.cpus for one in jobs.wants] == [20.0, 240.0, 30.0]
    assert [one.gpu_type for one in jobs.wants] == ["A10", "A100-SXM4-80GB", "A100-SXM4-80GB"]
    assert jobs.queues == ("13", "57", "57")
    path = tmp_path / "pai.csv"
    path.write_text(text("alibaba_pai_simulator.csv"))
    found = read_jobs(path)
    assert found.jobs.num_gpus.tolist() == [2]
    assert "1 job of several parts of GPUs was left out." in found.notes


def test_workers_of_one_gpu_lie_on_any_nodes_of_their_kind(
    capsys: pytest.CaptureFixture[str],
) -> None:
    jobs, nodes = FOLDER / "alibaba_spot_jobs.csv", FOLDER / "alibaba_spot_nodes.csv"
    assert [one.required for one in read_jobs(jobs).jobs.wants] == [True, False, True]
    words = ["queue", "simulate", str(jobs), "--cluster", str(nodes), "--policy", "fifo", "--json"]
    assert main.run(words) == 0
    found = msgspec.json.decode(capsys.readouterr().out, type=QueueSimulation)
    assert (found.jobs, found.gpus) == (3, 21)


def test_instances_that_were_there_before_the_trace_are_left_out(tmp_path: Path) -> None:
    jobs = read(text("alibaba_disaggregated.csv"), tmp_path)
    assert jobs.names == ("instance_7186",)
    assert (jobs.num_gpus.tolist(), jobs.duration_seconds.tolist()) == ([1], [3900.0])


def test_attempts_of_phillys_log_are_one_job(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, machines = tmp_path / "cluster_job_log", tmp_path / "cluster_machine_list.csv"
    path.write_text(text("philly_cluster_job_log.json"))
    found = read_jobs(path)
    assert (found.jobs.names, found.jobs.queues) == (("application_14199",), ("ee9e8c",))
    assert found.jobs.num_gpus.tolist() == [3]
    assert found.jobs.duration_seconds.tolist() == [74.0 + 390.0]
    assert found.notes == (
        "2 jobs that never started, had not ended, or do not say when were left out.",
    )
    machines.write_text("machineId, number of GPUs, single GPU mem\nm31,8, 24GB\nm32,2, 12GB\n")
    words = ["queue", "simulate", str(path), "--cluster", str(machines), "--policy", "fifo"]
    assert main.run([*words, "--json"]) == 0
    assert msgspec.json.decode(capsys.readouterr().out, type=QueueSimulation).gpus == 10
    path.write_text(
        text("philly_cluster_job_log.json").replace("2017-10-07 01:20:00", "2017-10-06 01:20:00")
    )
    assert main.run(words) == 2
    assert "job 0 (application_14199): an attempt starts at" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("job_name,task_name,inst_num,status,start_time,end_time,plan_gpu,gpu_type\n",
         "PAI's table of tasks does not tell when they were submitted"),
        ("id,job_name,kind,model,gmt_job_submitted,gmt_job_running,gmt_job_finished\n",
         "no column num_gpus; the GPUs of these jobs stand in worker.csv (RES)"),
        ("pod_id,workload_id,gpu_request,duration_hours,schedule_delay_sec\n",
         "this table of executions does not tell when they were submitted"),
    ],
)  # fmt: skip
def test_a_table_that_lacks_what_stands_elsewhere_says_where(
    content: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "jobs.csv"
    path.write_text(content)
    assert main.run(["queue", "simulate", str(path), "--gpus", "8"]) == 2
    said = capsys.readouterr().err
    assert says in said
    assert said.count("\n") == 1


def test_lingjuns_jobs_are_read_once_their_gpus_are_there(tmp_path: Path) -> None:
    head = "id,job_name,gmt_job_submitted,gmt_job_running,gmt_job_finished,num_gpus\n"
    jobs = read(head + "1,dlc1,2023/7/15 02:19,2023/7/15 02:20,2023/7/15 02:23,16\n", tmp_path)
    assert (jobs.names, jobs.duration_seconds.tolist()) == (("dlc1",), [180.0])


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ("3,A10,1,128\n3,A10,1,128\n", "line 3: node '3' stands in line 2 already"),
        ("3,A10,some,128\n", "line 2: gpus is 'some'; give a number"),
        ("3,A10,0.5,128\n", "line 2: gpus is '0.5'; give a whole number"),
        ("3,A10,0,128\n", "no node with a GPU that takes jobs"),
        ("3,A10\n", "line 2: 2 cells under 4 columns"),
    ],
)
def test_a_row_that_is_no_node_is_one_line(
    row: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    jobs, nodes = tmp_path / "jobs.csv", tmp_path / "nodes.csv"
    jobs.write_text(text("alibaba_spot_jobs.csv"))
    nodes.write_text(text("alibaba_spot_nodes.csv").splitlines()[0] + "\n" + row)
    assert main.run(["queue", "simulate", str(jobs), "--cluster", str(nodes)]) == 2
    said = capsys.readouterr().err
    assert says in said
    assert said.count("\n") == 1


SPEC = "num_switch,num_node_p_switch,num_gpu_p_node,num_cpu_p_node,mem_p_node\n"
OPENB_NODE = """apiVersion: v1
kind: Node
metadata:
  name: openb-node-{number}
  labels: {{alibabacloud.com/gpu-card-model: V100M16}}
status:
  allocatable: {{alibabacloud.com/gpu-count: "8", alibabacloud.com/gpu-milli: "8000", cpu: 96}}
"""


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("n6g8.csv", f"{SPEC}2,3,8,92,520", "48 GPUs on 6 nodes"),
        ("n.yaml", "---\n".join(OPENB_NODE.format(number=one) for one in range(6)),
         "48 GPUs on 6 nodes"),
        ("n0.csv", f"{SPEC}2,0,8,92,520", "line 2: num_node_p_switch is '0'; give a whole number"),
        ("n.csv", f"{SPEC}2,3,8,92,520\n2,3,8,92,520", "give one line of numbers under"),
    ],
)  # fmt: skip
def test_clusters_of_other_simulators_are_read(
    name: str, text: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Those of Tiresias and what came after it, and openb's nodes as FGD's has them."""
    (tmp_path / name).write_text(text)
    jobs = tmp_path / "jobs.csv"
    jobs.write_text("submit_s,duration_s,num_gpus,gpu_spec\n0,60,8,V100M16|V100M32\n")
    if name.endswith(".csv"):
        jobs.write_text("submit_s,duration_s,num_gpus\n0,60,8\n")
    words = ["queue", "simulate", str(jobs), "--cluster", str(tmp_path / name), "--policy", "fifo"]
    code = main.run(words)
    said = capsys.readouterr()
    assert (code, says in said.out + said.err) == (0 if "GPUs" in says else 2, True)
