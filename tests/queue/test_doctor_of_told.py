"""`ridgeline queue doctor` where a cluster says itself what is wrong, and other files of Slurm."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from tests.queue.asked_doctor import called_ill, diagnosed, made, write
from tests.queue.test_doctor_of_withheld import job, node
from tests.queue.told_clusters import TOLD, TOLD_HEALTHY

from ridgeline.cli import main


def test_what_a_cluster_says_of_itself_is_named_first_with_a_manifest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    missed = {}
    for name, (cause, lost, words, plant) in TOLD.items():
        found = diagnosed(write(made(plant, 1), tmp_path), capsys).findings
        first = found[0] if found else None
        if first is None or (first.cause, first.lost_gpus) != (cause, lost):
            missed[name] = [(one.cause, one.lost_gpus, one.summary) for one in found]
            continue
        assert words in first.summary
        assert all(isinstance(part, dict) for part in yaml.safe_load_all(first.setting))
        assert "{" not in first.cure
    assert not missed


def test_what_only_looks_like_it_is_not_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert not called_ill(TOLD_HEALTHY, tmp_path, capsys)


LICENSES = "LicenseName=cfd\n    Total=64 Used=64 Free=0 Reserved=0 Remote=no\n"
ACCOUNTS = "Cluster|Account|User|GrpTRES|MaxTRES|\nhpc|physics||||\nhpc|lab||gres/gpu=8||\n"
BUILTIN = "# ours\nClusterName=hpc\nSchedulerType=sched/builtin # strict\n"
DRAINED = "REASON               USER      TIMESTAMP           NODELIST\nbad fan              root      2026-11-28T10:00:00 g[1-2]\n"  # noqa: E501


def waiting(number: int, reason: str, **other: str) -> str:
    text = job(number, 8).replace("Reason=Resources", f"Reason={reason}")
    return text + "".join(f"   {name}={value}\n" for name, value in other.items())


@pytest.mark.parametrize(
    ("jobs", "beside", "cause", "words"),
    [
        (waiting(2, "Licenses", Licenses="cfd:64"), LICENSES, "held-as-told", "cfd: 64 of 64"),
        (waiting(2, "AssocGrpGRES", Account="lab"), ACCOUNTS, "quota-holds-back",
         "account lab (GrpTRES 8 GPUs)"),
        (waiting(2, "DependencyNeverSatisfied"), "", "held-as-told", "will never start"),
        (waiting(2, "ReqNodeNotAvail,_Reserved_for_maintenance"), "", "held-as-told",
         "7-00:00:00"),
        (waiting(2, "Resources", Features="ib"), "", "no-node-admits", "feature ib"),
        (job(2, 64, nodes=8) + job(3, 8), BUILTIN, "strict-order", "sched/builtin"),
        (job(2, 8), DRAINED, "closed-nodes", "drained: bad fan"),
    ],
)  # fmt: skip
def test_other_files_of_slurm_say_why_jobs_wait(
    jobs: str, beside: str, cause: str, words: str, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    state = "DRAINED" if beside == DRAINED else "IDLE"
    nodes = "".join(
        node(f"g{one}", 8 * (one < 1), 64 * (one < 1), state=state if one else "MIXED").replace(
            "   RealMemory", "   ActiveFeatures=eth\n   RealMemory"
        )
        for one in range(3)
    )
    texts = {"nodes": nodes, "jobs": job(1, 8, "g0") + jobs, "beside": beside}
    given = {name: text for name, text in texts.items() if text}
    for name, text in given.items():
        (tmp_path / name).write_text(text)
    found = diagnosed([str(tmp_path / name) for name in given], capsys).findings[0]
    assert found.cause == cause
    assert words in found.summary
    assert "apiVersion" not in found.setting
    assert "{" not in found.cure + found.setting


def test_slurm_with_linear_selection_gives_whole_nodes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "nodes").write_text(node("g0", 1, 128))
    (tmp_path / "jobs").write_text(job(1, 1, "g0", cpus=128) + job(2, 4, cpus=32))
    (tmp_path / "slurm.conf").write_text("ClusterName=a\nSelectType=select/linear\n")
    words = [str(tmp_path / name) for name in ("nodes", "jobs", "slurm.conf")]
    assert diagnosed(words, capsys).findings[0].cause == "whole-nodes-for-few"


def test_a_table_of_sacctmgr_that_is_cut_is_one_line_with_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "nodes").write_text(node("g0", 8, 64))
    (tmp_path / "jobs").write_text(job(1, 8, "g0"))
    (tmp_path / "accounts").write_text(
        "   Cluster    Account       User       GrpTRES\n"
        "---------- ---------- ---------- -------------\n"
        "       hpc       root                          \n"
    )
    words = [str(tmp_path / name) for name in ("nodes", "jobs", "accounts")]
    assert main.run(["queue", "doctor", *words]) == 2
    assert "sacctmgr -p show assoc" in capsys.readouterr().err
