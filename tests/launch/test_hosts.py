"""Two nodes over a stand-in for ssh: real torchrun agents that meet on this machine (gloo)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.ports import reserved_port

from ridgeline.errors import ChildDied, InputError
from ridgeline.launch.cluster_file import ClusterFile, NodeSection, RunSection, Ssh
from ridgeline.launch.job import LaunchJob, job_of
from ridgeline.launch.merge import LogLine
from ridgeline.launch.places.hosts import host_commands, run_on_hosts
from ridgeline.records.layout import Layout
from ridgeline.records.recipe import Recipe, RecipeData, RecipeModel, RecipeOptimizer

SSH = ("sh", "-c", 'exec sh -c "$2"', "ssh")
"""Called as `ssh HOST LINE`: runs the line here."""
RANKS_MEET = """
import os, sys, torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
print("met", int(total), "recipe", open(sys.argv[1] + "/recipe.toml").read().strip(), flush=True)
dist.destroy_process_group()
"""
ONE_FAILS = """
import os, sys, time
if os.environ["RANK"] == "1":
    raise ValueError("no such expert")
time.sleep(60)
"""
SAVES_WHEN_TOLD = """
import os, signal, sys, time
def save(*_):
    open(sys.argv[1] + "/saved" + os.environ["RANK"], "w").close()
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
open(sys.argv[1] + "/began" + os.environ["RANK"], "w").close()
time.sleep(60)
"""


@pytest.fixture
def port() -> Iterator[int]:
    with reserved_port() as found:
        yield found


def a_job(tmp_path: Path, script: str, port: int, nodes: int = 2) -> LaunchJob:
    (tmp_path / "rank.py").write_text(script)
    cluster = ClusterFile(
        nodes=NodeSection(ranks=1),
        run=RunSection(python=sys.executable, port=port, restarts=0, grace_seconds=15),
        environment={"GLOO_SOCKET_IFNAME": "lo"},
        ssh=Ssh(hosts=("alpha", "beta")[:nodes], command=SSH, rendezvous="127.0.0.1"),
    )
    recipe = Recipe(
        model=RecipeModel(config="gpt2"),
        data=RecipeData(seq=128),
        layout=Layout(dp=nodes, global_batch=nodes),
        optimizer=RecipeOptimizer(learning_rate=1e-3, final_learning_rate=1e-4),
    )
    worker = (str(tmp_path / "rank.py"),)
    folder = str(tmp_path / "run's folder")
    return job_of(recipe, "it's = 1\n", cluster, name="gpt", worker=worker, folder=folder)


def test_each_host_gets_its_own_line(tmp_path: Path, port: int) -> None:
    first, second = host_commands(a_job(tmp_path, "", port), local=False)
    assert (first.host, second.host) == ("alpha", "beta")
    assert "is_host=true" in first.words[-1]
    assert "is_host=false" in second.words[-1]
    assert "--rdzv-endpoint 127.0.0.1:" in second.words[-1]


@pytest.mark.slow
@pytest.mark.multiprocess
def test_ranks_on_two_hosts_meet_and_are_heard_as_one(tmp_path: Path, port: int) -> None:
    job = a_job(tmp_path, RANKS_MEET, port)
    heard: list[LogLine] = []
    run_on_hosts(job, host_commands(job, local=False), tmp_path / "logs", heard.append)
    met = sorted(line.prefixed for line in heard if line.text.startswith("met"))
    assert met == [f"[rank {rank}] met 2 recipe it's = 1" for rank in (0, 1)]
    assert len(list((tmp_path / "logs").glob("*.log"))) == 2


@pytest.mark.slow
@pytest.mark.multiprocess
def test_when_one_host_fails_all_end_and_its_error_is_told(tmp_path: Path, port: int) -> None:
    job = a_job(tmp_path, ONE_FAILS, port)
    began = time.monotonic()
    with pytest.raises(ChildDied, match=r"\[rank 1\] ValueError: no such expert"):
        run_on_hosts(job, host_commands(job, local=False), tmp_path / "logs", lambda _: None)
    assert time.monotonic() - began < 50.0
    assert left_behind(tmp_path) == []


@pytest.mark.multiprocess
def test_a_launcher_that_is_killed_leaves_no_rank_and_ranks_save_first(
    tmp_path: Path, port: int
) -> None:
    job = a_job(tmp_path, SAVES_WHEN_TOLD, port, nodes=1)
    folder = Path(job.folder)
    launcher = subprocess.Popen(
        [sys.executable, "-c", LAUNCHER, str(tmp_path), str(port)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([*sys.path, str(Path.cwd())])},
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_for((folder / "began0").exists, 120.0)
        launcher.send_signal(signal.SIGKILL)
    finally:
        launcher.kill()
        launcher.wait()
    wait_for((folder / "saved0").exists, 120.0)
    wait_for(lambda: not left_behind(tmp_path), 120.0)


LAUNCHER = """
import sys
from pathlib import Path
from tests.launch.test_hosts import SAVES_WHEN_TOLD, a_job
from ridgeline.launch.places.hosts import host_commands, run_on_hosts
place = Path(sys.argv[1])
job = a_job(place, SAVES_WHEN_TOLD, int(sys.argv[2]), nodes=1)
run_on_hosts(job, host_commands(job, local=False), place / "logs", lambda line: None)
"""


def wait_for(condition: object, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline, "it did not come"
        time.sleep(0.1)


def left_behind(tmp_path: Path) -> list[str]:
    """Processes whose command line names the run's script."""
    script = str(tmp_path / "rank.py").encode()
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                line = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if script in line:
                found.append(line.decode().replace("\0", " "))
    return found


def test_what_a_rank_says_a_user_can_mend_is_an_input_error(tmp_path: Path, port: int) -> None:
    job = a_job(tmp_path, "", port, nodes=1)
    errors = Path(job.folder) / "errors"
    errors.mkdir(parents=True)
    (errors / "rank0.txt").write_text("2\ndata.path: no such file\n")
    from ridgeline.launch.places.hosts import HostCommand

    with pytest.raises(InputError, match=r"data\.path: no such file"):
        run_on_hosts(
            job, [HostCommand(host="", words=("false",))], tmp_path / "logs", lambda _: None
        )
