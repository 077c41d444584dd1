"""Slurm through programs that stand in for it: what they are handed, what their answers mean."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from tests.launch.recipe import RECIPE

from ridgeline.cli.main import run as ridgeline
from ridgeline.launch.cluster_file import ClusterFile, NodeSection, RunSection, Slurm
from ridgeline.launch.job import LaunchJob, job_of
from ridgeline.launch.places import slurm
from ridgeline.launch.remembered import Remembered
from ridgeline.records.layout import Layout
from ridgeline.records.recipe import Recipe, RecipeData, RecipeModel, RecipeOptimizer
from ridgeline.records.state_folder import state_folder

ON_SIXTEEN = RECIPE + "dp = 16\nglobal_batch = 16\n"


def render(job: LaunchJob) -> str:
    return slurm.render(job, "slurm", None)


def a_job(folder: Path, **slurm: object) -> LaunchJob:
    recipe = Recipe(
        model=RecipeModel(config="gpt2"),
        data=RecipeData(seq=128),
        layout=Layout(dp=16, global_batch=16),
        optimizer=RecipeOptimizer(learning_rate=1e-3, final_learning_rate=1e-4),
    )
    cluster = ClusterFile(
        nodes=NodeSection(devices=8, cpus=96, memory_bytes=10**12),
        run=RunSection(folder=str(folder)),
        slurm=Slurm(**slurm),  # type: ignore[arg-type]
    )
    worker = ("-m", "ridgeline.train.worker")
    text = 'path = "$HOME `date` it\'s"\n'
    return job_of(recipe, text, cluster, name="gpt", worker=worker, folder=str(folder / "gpt"))


def test_the_file_asks_for_what_the_job_needs(tmp_path: Path) -> None:
    script = render(a_job(tmp_path, partition="h100", time="1-00:00:00", gpu_type="h100"))
    options = {line[8:] for line in script.splitlines() if line.startswith("#SBATCH")}
    assert options >= {
        "--nodes=2",
        "--ntasks-per-node=1",
        "--gpus-per-node=h100:8",
        "--cpus-per-task=96",
        "--mem=953675M",
        "--partition=h100",
        "--time=1-00:00:00",
        "--exclusive",
        "--requeue",
        "--signal=B:USR1@180",
    }


def played(tmp_path: Path, srun: str) -> dict[str, str]:
    """Slurm's programs on PATH; each writes down how it was called."""
    programs = {
        "srun": srun,
        "scontrol": 'case $1 in show) echo node7; echo node8;; *) echo "$@" >> "$CALLS";; esac',
        "scancel": 'echo "scancel $@" >> "$CALLS"; touch "$CALLS.told"',
    }
    (tmp_path / "bin").mkdir()
    for name, text in programs.items():
        program = tmp_path / "bin" / name
        program.write_text(f"#!/bin/bash\n{text}\n")
        program.chmod(0o755)
    return {
        "PATH": f"{tmp_path / 'bin'}:/usr/bin:/bin",
        "CALLS": str(tmp_path / "calls"),
        "SLURM_JOB_ID": "41",
        "SLURM_JOB_NODELIST": "node[7-8]",
        "SLURM_PROCID": "0",
    }


def test_the_script_runs_torchrun_at_the_first_node_and_brings_the_recipe(tmp_path: Path) -> None:
    script = render(a_job(tmp_path))
    # The last word is what each node's shell runs: echo it instead of torchrun.
    srun = 'for last; do :; done; bash -c "${last/exec /echo }"'
    done = subprocess.run(
        ["bash", "-c", script],
        env=played(tmp_path, srun),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "--rdzv-endpoint node7:29400" in done.stdout
    assert "is_host=true" in done.stdout
    assert "--nnodes 2" in done.stdout
    text = (tmp_path / "gpt" / "recipe.toml").read_text()
    assert text == 'path = "$HOME `date` it\'s"\n'


def test_near_the_time_limit_ranks_are_told_to_save_and_the_job_queues_again(
    tmp_path: Path,
) -> None:
    srun = (
        'kill -USR1 $PPID; while [ ! -e "$CALLS.told" ]; do sleep 0.05; done; sleep 0.1; exit 143'
    )
    done = subprocess.run(
        ["bash", "-c", render(a_job(tmp_path))], env=played(tmp_path, srun), check=False
    )
    assert done.returncode == 143
    calls = (tmp_path / "calls").read_text().splitlines()
    assert calls == ["scancel --signal=TERM 41", "requeue 41"]


@pytest.fixture
def login_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """sbatch, squeue, sacct and scancel that answer from files."""
    bin_folder = tmp_path / "bin"
    bin_folder.mkdir()
    programs = {
        "sbatch": f'echo "$@" > {tmp_path}/sbatch.args; echo "73;cluster"',
        "squeue": f"cat {tmp_path}/squeue",
        "sacct": f"cat {tmp_path}/sacct",
        "scancel": f'echo "$@" > {tmp_path}/scancel.args',
    }
    for name, text in programs.items():
        (bin_folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (bin_folder / name).chmod(0o755)
    (tmp_path / "gpt.toml").write_text(ON_SIXTEEN)
    (tmp_path / "cluster.toml").write_text(
        f'[nodes]\ndevices = 8\n[run]\nfolder = "{tmp_path}/runs"\n'
    )
    monkeypatch.setenv("PATH", f"{bin_folder}:/usr/bin:/bin")
    monkeypatch.setenv("RIDGELINE_STATE", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_job_is_submitted_explained_and_cancelled(
    login_node: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (login_node / "squeue").write_text("PENDING|QOSMaxGRESPerUser\n")
    launch = ["launch", "gpt.toml", "--on", "slurm", "--cluster", "cluster.toml"]
    assert ridgeline(launch) == 0
    assert (login_node / "sbatch.args").read_text().startswith("--parsable ")
    assert "account or QOS has reached its limit" in " ".join(capsys.readouterr().out.split())
    for queue, books, state in [
        ("RUNNING|None\n", "", "running"),
        ("", "COMPLETED|0:0\n", "done"),
        ("", "NODE_FAIL|1:0\n", "failed"),
        ("", "CANCELLED by 1000|0:15\n", "cancelled"),
        ("", "", "lost"),
    ]:
        (login_node / "squeue").write_text(queue)
        (login_node / "sacct").write_text(books)
        assert ridgeline(["launch", "status", "gpt", "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["state"] == state
    log = login_node / "runs" / "gpt" / "logs" / "slurm-73.log"
    log.write_text("0: [rank1]:step 1\n1: [rank8]:KeyError: 'expert'\n")
    assert ridgeline(["launch", "logs", "gpt"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "first error: [rank 8] KeyError: 'expert'",
        "[rank 1] step 1",
        "[rank 8] KeyError: 'expert'",
    ]
    assert ridgeline(["launch", "cancel", "gpt"]) == 0
    assert (login_node / "scancel.args").read_text() == "73\n"


def test_without_slurm_nothing_is_remembered(
    login_node: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert ridgeline(["launch", "gpt.toml", "--on", "slurm", "--cluster", "cluster.toml"]) == 2
    assert "sbatch is not on this machine" in capsys.readouterr().err
    assert Remembered(state_folder("launch")).all() == []
