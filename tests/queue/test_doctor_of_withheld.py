"""`ridgeline queue doctor` where something withholds free GPUs, on Kubernetes and Slurm."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.queue.asked_doctor import called_ill, diagnosed, made, not_named_first, write
from tests.queue.withheld_clusters import WITHHELD, WITHHELD_HEALTHY

SACCT_HEAD = "JobID|Submit|ElapsedRaw|State|Partition|AllocTRES\n"


def test_what_withholds_free_gpus_is_named_first_with_a_manifest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert not not_named_first(WITHHELD, tmp_path, capsys)


def test_where_nothing_is_withheld_nothing_is_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert not called_ill(WITHHELD_HEALTHY, tmp_path, capsys)


@pytest.mark.parametrize(
    ("name", "lost"),
    [("suspended gangs", 32), ("Volcano's groups without pods", 24), ("topology spread", 3)],
)
def test_workloads_without_pods_count_with_what_would_start_of_them(
    name: str, lost: float, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Four nodes are free: two jobs of two pods start, or three groups of eight GPUs."""
    found = diagnosed(write(made(WITHHELD[name][1], 1), tmp_path), capsys)
    assert found.findings[0].lost_gpus == lost


def node(name: str, gpus: int, cpus: int, *, kind: str = "a100", state: str = "MIXED",
         partition: str = "gpu") -> str:  # fmt: skip
    used = f"cpu={cpus},gres/gpu={gpus}" if cpus else ""
    return (
        f"NodeName={name} Arch=x86_64 CoresPerSocket=32\n   CPUAlloc={cpus} CPUTot=128\n"
        f"   Gres=gpu:{kind}:8(S:0-1)\n   RealMemory=1000000 Sockets=2\n   State={state}\n"
        f"   Partitions={partition}\n   AllocTRES={used}\n\n"
    )


def job(number: int, gpus: int, where: str = "", *, cpus: int = 64, kind: str = "", nodes: int = 1,
        shares: str = "OK", since: str = "2026-11-28T10:00:00") -> str:  # fmt: skip
    tres = f"cpu={cpus},mem=100G,node={nodes},gres/gpu={gpus}"
    tres += f",gres/gpu:{kind}={gpus}" if kind else ""
    started = "StartTime=2026-11-29T04:00:00" if where else "StartTime=Unknown"
    return (
        f"JobId={number} JobName=train\n   JobState={'RUNNING' if where else 'PENDING'}"
        f" Reason={'None' if where else 'Resources'}\n   RunTime={'05:00:00' if where else '0'}"
        f" TimeLimit=7-00:00:00\n   SubmitTime={since}\n   {started}\n   Partition=gpu\n"
        f"   NodeList={where}\n   NumNodes={nodes} NumCPUs={cpus}\n   ReqTRES={tres}\n"
        f"   OverSubscribe={shares} Contiguous=0\n\n"
    )


def exclusive() -> tuple[str, str]:
    nodes = "".join(node(f"g{one}", 1, 128) for one in range(4))
    jobs = "".join(job(one, 1, f"g{one}", cpus=128, shares="NO") for one in range(4))
    return nodes, jobs + "".join(job(10 + one, 4, cpus=32) for one in range(5))


def idle_partition() -> tuple[str, str]:
    nodes = "".join(node(f"g{one}", 8, 64) for one in range(3))
    nodes += "".join(node(f"d{one}", 0, 0, state="IDLE", partition="talks") for one in range(3))
    jobs = "".join(job(one, 8, f"g{one}") for one in range(3))
    return nodes, jobs + "".join(job(10 + one, 8) for one in range(4))


def idle_kind() -> tuple[str, str]:
    nodes = "".join(node(f"g{one}", 8, 64) for one in range(3))
    nodes += "".join(node(f"h{one}", 0, 0, kind="h100", state="IDLE") for one in range(2))
    jobs = "".join(job(one, 8, f"g{one}", kind="a100") for one in range(3))
    return nodes, jobs + "".join(job(10 + one, 8, kind="a100") for one in range(4))


def long_limits() -> tuple[str, str]:
    """Two nodes are kept for a job of four, beside jobs of one node that would fill them."""
    nodes = "".join(node(f"g{one}", 8 * (one < 4), 64 * (one < 4)) for one in range(6))
    jobs = "".join(job(one, 8, f"g{one}", since="2026-11-27T10:00:00") for one in range(4))
    jobs += job(9, 32, nodes=4, cpus=256)
    return nodes, jobs + "".join(job(10 + one, 8, since="2026-11-29T05:00:00") for one in range(3))


@pytest.mark.parametrize(
    ("plant", "cause", "lost"),
    [
        (exclusive, "whole-nodes-for-few", 16),
        (idle_partition, "bound-to-some-nodes", 24),
        (idle_kind, "bound-to-some-nodes", 16),
        (long_limits, "limits-too-long", 16),
    ],
)
def test_what_withholds_gpus_of_slurm_is_named_first_in_its_words(
    plant: Callable[[], tuple[str, str]],
    cause: str,
    lost: float,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = [str(tmp_path / name) for name in ("nodes.txt", "jobs.txt", "sacct.txt")]
    ended = [f"{one}|2026-11-2{one}T10:00:00|{9000 + one}|COMPLETED|gpu|gres/gpu=8"
             for one in range(1, 8)]  # fmt: skip
    for word, text in zip(words, (*plant(), SACCT_HEAD + "\n".join(ended)), strict=True):
        Path(word).write_text(text)
    found = diagnosed(words, capsys).findings
    assert (found[0].cause, found[0].lost_gpus) == (cause, lost)
    assert "apiVersion" not in found[0].setting
    assert "{" not in found[0].cure + found[0].setting


def test_a_reservation_says_for_whom_it_keeps_nodes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "nodes").write_text(node("g0", 8, 64) + node("g1", 0, 0, state="IDLE+RESERVED"))
    (tmp_path / "jobs").write_text(job(1, 8, "g0") + job(2, 8))
    (tmp_path / "kept").write_text(
        "ReservationName=course StartTime=2026-11-20T00:00:00 EndTime=2026-12-20T00:00:00\n"
        "   Nodes=g1 NodeCnt=1 PartitionName=gpu Flags=SPEC_NODES\n"
        "   Users=(null) Accounts=teaching State=ACTIVE\n"
    )
    words = [str(tmp_path / name) for name in ("nodes", "jobs", "kept")]
    found = diagnosed(words, capsys).findings[0]
    assert found.cause == "closed-nodes"
    assert "g1: reserved by course for accounts teaching until 2026-12-20" in found.summary
