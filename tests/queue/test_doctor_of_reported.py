"""`ridgeline queue doctor` on faults that people reported, and on Slurm's tables as pasted."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from tests.queue.asked_doctor import called_ill, diagnosed, made, write
from tests.queue.reported_clusters import NOT_REPORTED, REPORTED
from tests.queue.test_doctor_of_withheld import job, node

from ridgeline.cli import main


def test_what_was_reported_is_named_first_with_a_manifest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    missed = {}
    for name, (cause, lost, words, plant) in REPORTED.items():
        found = diagnosed(write(made(plant, 1), tmp_path), capsys).findings
        first = found[0] if found else None
        if first is None or first.cause != cause or abs(first.lost_gpus - lost) > 0.1:
            missed[name] = [(one.cause, one.lost_gpus, one.summary) for one in found]
            continue
        assert words in first.summary, name
        assert all(isinstance(part, dict) for part in yaml.safe_load_all(first.setting))
        assert "{" not in first.cure
    assert not missed


def test_what_only_looks_like_a_report_is_not_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert not called_ill(NOT_REPORTED, tmp_path, capsys)


SINFO = """PARTITION AVAIL  TIMELIMIT  NODES  STATE NODELIST
long-gpu-queue*  up 7-00:00:00      1  down* g8
long-gpu-queue*  up 7-00:00:00      1  drain g7
long-gpu-queue*  up 7-00:00:00      2    mix g[5-6]
cpu              up   infinite      1   idle c1
"""
HEAD = "             JOBID PARTITION     NAME     USER ST       TIME  NODES NODELIST(REASON)\n"
SQUEUE = HEAD + "".join(
    f"{number:>18} {part:>9} {name:>8}      ann {state:>2}       1:00      1 {where}\n"
    for number, part, name, state, where in (
        (1, "long-gpu-", "my train", "R", "g5"), (2, "long-gpu-", "train", "R", "g6"),
        (3, "long-gpu-", "my eval", "PD", "(ReqNodeNotAvail, UnavailableNodes:g[7-8])"),
        (4, "cpu", "blast", "PD", "(Resources)"),
    )
)  # fmt: skip
CONF = "NodeName=DEFAULT CPUs=64\nNodeName=g[5-8] Gres=gpu:a100:4\nNodeName=c1\n"
REASONS = (
    "REASON               USER        TIMESTAMP           NODELIST\n"
    "Low RealMemory       slurm       2026-11-26T04:12:33 g[7-8]\n"
)
IDLE_AND_BUSY = node("g0", 0, 0, state="IDLE") + node("g1", 8, 128)
BUSY = job(9, 8, "g1", cpus=128)


def asked(texts: dict[str, str], folder: Path) -> list[str]:
    for name, text in texts.items():
        (folder / name).write_text(text)
    return [str(folder / name) for name in texts]


@pytest.mark.parametrize("pasted", [False, True])
def test_tables_as_slurm_prints_them_are_read_with_the_gpus_of_slurm_conf(
    pasted: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = {"sinfo": SINFO, "squeue": "Sun Nov 29 09:33:10 2026\n" + SQUEUE,
             "sinfo -R": REASONS, "grep Node slurm.conf": CONF}  # fmt: skip
    if pasted:
        session = "".join(f"[ann@login1 ~]$ {name}\n{text}" for name, text in texts.items())
        texts = {"session.txt": session}
    found = diagnosed(asked(texts, tmp_path), capsys)
    assert (found.gpus, found.allocated_gpus, found.waiting_gpus) == (16, 8, 4)
    assert [(one.cause, one.lost_gpus) for one in found.findings] == [("closed-nodes", 4)]
    assert "Low RealMemory" in found.findings[0].summary
    assert any("squeue does not tell the GPUs of 3 jobs" in note for note in found.notes)


def test_what_no_table_tells_is_one_line_that_says_what_to_add(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.run(["queue", "doctor", *asked({"a": SINFO, "b": SQUEUE}, tmp_path)]) == 2
    assert "add slurm.conf or scontrol show node" in capsys.readouterr().err


def test_a_partition_that_is_down_and_ranks_that_sprio_prints(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = {
        "nodes": IDLE_AND_BUSY, "jobs": BUSY + job(1, 8),
        "parts": "PartitionName=gpu\n   AllowGroups=ALL\n   State=DOWN Nodes=g[0-1]\n",
        "sprio": "JOBID PARTITION PRIORITY SITE AGE FAIRSHARE\n1 gpu 1200 0 100 1100\n",
    }  # fmt: skip
    found = diagnosed(asked(texts, tmp_path), capsys)
    assert "partition gpu is DOWN" in found.findings[0].summary
    assert any("sprio" in note for note in found.notes)


@pytest.mark.parametrize(
    ("nodes", "jobs", "beside", "cause", "lost", "words"),
    [
        # another's job has all cores of the node; squeue's own table tells no cores
        (node("g0", 2, 128), HEAD + "7 gpu a u PD 0:00 1 (Resources)\n", "", "starved-of-cpu", 1,
         "wait for CPU"),
        (node("g0", 2, 32), job(1, 2, "g0", cpus=32) + job(2, 1, cpus=16),
         "PartitionName=gpu Nodes=g0 MaxCPUsPerNode=32\n", "starved-of-cpu", 1,
         "MaxCPUsPerNode=32 of partition gpu"),
        (IDLE_AND_BUSY, BUSY + job(1, 16, nodes=2) + job(2, 1),
         "sdiag output at Sun\nBackfilling stats\n Last depth cycle: 1\n Last queue length: 2\n",
         "backfill-cut-short", 1, "looks at 1 jobs a cycle (by sdiag) of 2"),
        (IDLE_AND_BUSY, BUSY + job(1, 8).replace("Reason=Resources", "Reason=AssocGrpGRES")
         + "   Account=astro\n",
         "Account|User|GrpTRES\nroot||\n physics||gres/gpu=32\n  astro||\n", "quota-holds-back",
         8, "account physics (GrpTRES 32 GPUs)"),
        (node("g0", 8, 128), HEAD + "7 gpu a u CF 2:00:00 1 g0\n", "", "held-without-running", 8,
         "7 is in CONFIGURING"),
        (IDLE_AND_BUSY + "".join(node(f"g{one}", 0, 0) for one in (2, 3)),
         BUSY + "".join(job(one, 8) + "   ReqNodeList=g1\n" for one in (1, 2, 3)), "",
         "bound-to-some-nodes", 24,
         "node g1"),
        (node("g1", 8, 128), BUSY, "JobID|State|Submit|Start|End|Elapsed|ElapsedRaw|AllocTRES\n"
         + "".join(f"5|PREEMPTED|2026-11-29T00:00:00|2026-11-29T0{hour}:00:00|2026-11-29T0{hour}"
                   ":30:00|00:30:00|1800|gres/gpu=4\n" for hour in range(1, 5)),
         "preemption-thrash", 16 / 7, "job 5 was evicted 4 times after 30.0 min"),
        (IDLE_AND_BUSY, BUSY + job(1, 8).replace("=Resources", "=ReservationDeleted"), "",
         "held-as-told", 8, "Slurm says of jobs: ReservationDeleted"),
        (IDLE_AND_BUSY, BUSY + job(1, 8).replace("Reason=Resources", "Reason=AssocGrpGRESMinutes")
         + "   Account=lab\n",
         "Account|User|ParentName|GrpTRES|GrpTRESMins\nlab||root||gres/gpu=600\n",
         "quota-holds-back", 8, "GrpTRESMins 600 GPU-minutes"),
    ],
)  # fmt: skip
def test_nodes_and_files_beside_say_what_squeue_does_not(
    nodes: str, jobs: str, beside: str, cause: str, lost: float, words: str, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    texts = {name: text for name, text in (("n", nodes), ("j", jobs), ("b", beside)) if text}
    found = diagnosed(asked(texts, tmp_path), capsys).findings[0]
    assert (found.cause, found.lost_gpus) == (cause, pytest.approx(lost))
    assert words in found.summary
    assert "{" not in found.cure + found.setting
