"""`ridgeline launch` before anything starts, and the small parts behind it."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.launch.recipe import KUBERNETES, NODES, ON_FOUR

from ridgeline.cli.main import run as ridgeline
from ridgeline.errors import InputError
from ridgeline.launch.cluster_file import read_cluster_file
from ridgeline.launch.merge import LogLine, first_error, merged, read_lines
from ridgeline.launch.ray_entry import _parser as ray_parser
from ridgeline.launch.ray_entry import run_rank, train

CLUSTER = f"""{NODES}
[run]
folder = "/shared/runs"
[ssh]
hosts = ["a", "b"]
{KUBERNETES}priority_class = "high"
"""
ADDRESS = '[ray]\naddress = "http://head:8265"\n'


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "My Run.toml").write_text(ON_FOUR)
    (tmp_path / "cluster.toml").write_text(CLUSTER)
    monkeypatch.setenv("RIDGELINE_STATE", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


DRY = ["launch", "My Run.toml", "--cluster", "cluster.toml", "--dry-run", "--on"]


@pytest.mark.parametrize(
    ("on", "more", "told"),
    [
        ("local", "", "--nproc-per-node 4"),
        ("torchrun", "", "--rdzv-endpoint a:29400"),
        ("slurm", "", "#SBATCH --nodes=2"),
        ("kubernetes", "", "kind: JobSet"),
        ("ray", "", "kind: RayJob"),
        ("ray", ADDRESS, "ray job submit --address http://head:8265 --submission-id my-run"),
    ],
)
def test_a_dry_run_prints_the_exact_thing_and_starts_nothing(
    place: Path, capsys: pytest.CaptureFixture[str], on: str, more: str, told: str
) -> None:
    (place / "cluster.toml").write_text(CLUSTER + more)
    assert ridgeline([*DRY, on]) == 0
    seen = capsys.readouterr()
    assert told in seen.out
    assert "4 devices" in seen.err
    assert not (place / "state").exists()


@pytest.mark.parametrize(
    ("on", "key"),
    [
        ("torchrun", "ssh.hosts"),
        ("slurm", "run.folder"),
        ("kubernetes", "kubernetes.image"),
        ("kubernetes", "kubernetes.queue"),
        ("kubernetes", "nodes.cpus and nodes.memory_bytes"),
        ("ray", "kubernetes.image"),
    ],
)
def test_all_missing_keys_are_named_with_the_file(
    place: Path, capsys: pytest.CaptureFixture[str], on: str, key: str
) -> None:
    (place / "cluster.toml").write_text("")
    assert ridgeline([*DRY, on]) == 2
    said = capsys.readouterr().err
    assert said.startswith("ridgeline: cluster.toml lacks ")
    assert f" {key}: " in said


def test_a_run_costs_what_the_device_costs_that_it_was_planned_for(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    planned = """[cluster]
devices = "4xH100-SXM-80GB"
domain_size = 4
domain_bytes_per_second = 450e9
network_bytes_per_second = 50e9
"""
    asked = [*DRY, "local", "--json"]
    assert ridgeline(asked) == 0
    alone = json.loads(capsys.readouterr().out)["price"]
    assert any("nodes.device" in one for one in alone["unknown"])
    (place / "My Run.toml").write_text(ON_FOUR + planned)
    assert ridgeline(asked) == 0
    price = json.loads(capsys.readouterr().out)["price"]
    assert price["usd_per_device_hour"] > 0
    assert not any("nodes.device" in one for one in price["unknown"])


def test_a_mistyped_key_is_named_with_the_file(place: Path) -> None:
    (place / "cluster.toml").write_text("[nodes]\ndevice_count = 8\n")
    with pytest.raises(InputError, match=r"cluster\.toml: .*device_count.*nodes"):
        read_cluster_file(place / "cluster.toml")


def test_runs_that_nobody_launched_are_named_as_such(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ridgeline(["launch", "status"]) == 0
    assert "No run was launched from here" in capsys.readouterr().out
    assert ridgeline(["launch", "logs", "gpt"]) == 2
    assert "no run 'gpt'" in capsys.readouterr().err


def test_what_a_dry_run_prints_passes_the_check(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ridgeline([*DRY, "kubernetes"]) == 0
    (place / "run.yaml").write_text(capsys.readouterr().out)
    assert ridgeline(["launch", "--check", "run.yaml", "--json"]) == 0
    verdicts = json.loads(capsys.readouterr().out)["verdicts"]
    assert [one["kind"].rpartition("/")[2] for one in verdicts] == ["ConfigMap", "JobSet"]


stamps = st.lists(st.integers(0, 59), min_size=0, max_size=20).map(sorted)


@given(st.lists(stamps, max_size=4))
def test_merged_logs_lose_nothing_and_go_forward_in_time(nodes: list[list[int]]) -> None:
    texts = [
        [
            f"2026-11-21T10:00:{second:02d}Z [rank{node}]:{node}.{i}"
            for i, second in enumerate(found)
        ]
        for node, found in enumerate(nodes)
    ]
    streams = [read_lines(text, node=i) for i, text in enumerate(texts)]
    lines = list(merged(streams))
    assert [line.seconds for line in lines] == sorted(line.seconds for line in lines)
    for node, found in enumerate(nodes):
        mine = [line.text for line in lines if line.rank == node]
        assert mine == [f"{node}.{i}" for i in range(len(found))]


def said(*texts: str) -> list[LogLine]:
    return [LogLine(seconds=i, node=0, rank=i, text=text) for i, text in enumerate(texts)]


def test_the_first_error_is_the_cause_not_the_aftermath() -> None:
    lines = said(
        "step 1",
        "torch.distributed.DistBackendError: Connection closed by peer",
        "torch.OutOfMemoryError: CUDA out of memory.",
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:",
    )
    assert first_error(lines) == lines[2]
    assert first_error(lines[:2]) == lines[1]
    assert first_error(lines[:1]) is None


def test_the_ray_entry_takes_what_the_launch_gives_it(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (place / "cluster.toml").write_text(CLUSTER + ADDRESS)
    assert ridgeline([*DRY, "ray"]) == 0
    shell = shlex.split(capsys.readouterr().out)[-1]
    words = shlex.split(re.sub(r".*exec ", "", shell, flags=re.DOTALL))
    options = ray_parser().parse_args(words[3:])
    assert (options.workers, options.restarts, options.gpu) == (4, 3, True)
    assert options.worker == ["-m", "ridgeline.train.worker", "/shared/runs/my-run"]
    assert "OMP_NUM_THREADS=4" in options.env


def test_a_rank_under_ray_that_fails_fails_the_worker(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="rank 3 ended with 7"):
        run_rank(["sh", "-c", "exit 7"], {"RANK": "3"})


def test_a_bad_variable_is_named_before_ray_is_asked() -> None:
    options: Any = ray_parser().parse_args(
        ["--name", "gpt", "--workers", "1", "--env", "OMP", "--", "w.py", "/tmp/gpt"]
    )
    with pytest.raises(InputError, match="'OMP' is not KEY=VALUE"):
        train(options)
