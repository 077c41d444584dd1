"""The wait that `ridgeline launch --on slurm --state` tells, from what Slurm's commands print."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.launch.recipe import RECIPE

from ridgeline.cli import main
from ridgeline.errors import InputError
from ridgeline.queue.expected_wait import expected_wait
from ridgeline.queue.readers.hostlist import host_names
from ridgeline.queue.readers.slurm_now import read_slurm_now

SINFO = """NODELIST|GRES|STATE|PARTITION
gpu01|gpu:a100:8(S:0-1)|mixed|batch*
gpu02|gpu:a100:8(S:0-1)|idle~|batch*
gpu02|gpu:a100:8(S:0-1)|idle~|debug
gpu03|gpu:a100:8(S:0-1)|drained|batch*
gpu04|gpu:a100:8(S:0-1)|idle*|batch*
h01|gpu:h100:4|idle|batch*
cpu01|(null)|idle|batch*
v01|gpu:v100:8|idle|old
"""
SQUEUE = "JOBID|STATE|PARTITION|NODES|TRES_PER_NODE|TIME|TIME_LIMIT|NODELIST|REASON|PRIORITY\n"
RUNS = ["1|RUNNING|batch|1|gres/gpu:8|20:00|2:00:00|gpu01|None|1"]
SACCT = "JobID|Submit|ElapsedRaw|State|Partition|AllocTRES\n" + "".join(
    f"{name}|2026-01-05T10:00:00|3600|COMPLETED|batch|gres/gpu=8\n" for name in range(90, 96)
)


def files(folder: Path, queue: list[str], *, sinfo: str = SINFO, sacct: str = SACCT) -> list[Path]:
    texts = {"sacct": sacct, "sinfo": sinfo, "squeue": SQUEUE + "\n".join(queue) + "\n"}
    for name, text in texts.items():
        (folder / name).write_text(text)
    return [folder / name for name in texts]


def test_nodes_are_those_that_take_jobs_of_the_partition(tmp_path: Path) -> None:
    found = read_slurm_now(files(tmp_path, RUNS))
    assert found.node_gpus == (8, 8, 4)
    assert read_slurm_now(files(tmp_path, RUNS), gpu_type="a100").node_gpus == (8, 8)
    debug = read_slurm_now(files(tmp_path, RUNS), partition="debug")
    assert (debug.node_gpus, debug.running) == ((8,), ())


def test_whoever_shares_nodes_is_ahead_by_priority_and_whoever_is_held_is_not(
    tmp_path: Path,
) -> None:
    wait = "|0:00|1-00:00:00||{}|{}"
    queue = [
        *RUNS,
        "2|PENDING|batch|2|gres/gpu:a100:4" + wait.format("(Priority)", 10),
        "3|PENDING|debug,old|1|gres/gpu:2" + wait.format("(Resources)", 30),
        "4_[2-8:2%2]|PENDING|batch|1|gres/gpu" + wait.format("(Priority)", 20),
        "5|PENDING|batch|1|gres/gpu:8" + wait.format("(Dependency)", 90),
        "6|PENDING|batch|1|gres/gpu:8" + wait.format("(JobHeldUser)", 90),
        "7|PENDING|old|1|gres/gpu:8" + wait.format("(Priority)", 90),
        "8|PENDING|batch|1|N/A" + wait.format("(Priority)", 90),
        "9|PENDING|batch|1|gres/gpu:h100:4" + wait.format("(Priority)", 5),
        "10|RUNNING|old|1|gres/gpu:8|1:00|UNLIMITED|v01|None|1",
        "11|RUNNING|batch|2|gres/gpu:8|1-01:00:00|UNLIMITED|gpu[02-03]|None|1",
    ]
    found = read_slurm_now(files(tmp_path, queue))
    assert [one.num_gpus for one in found.waiting] == [2, 1, 1, 8, 4]
    assert [(one.num_gpus, one.age_seconds, one.limit_seconds) for one in found.running] == [
        (8, 1200.0, 7200.0), (8, 90000.0, None),
    ]  # fmt: skip
    typed = read_slurm_now(files(tmp_path, queue), gpu_type="a100")
    assert [one.num_gpus for one in typed.waiting] == [2, 1, 1, 8]


def test_a_time_limit_ends_what_the_past_would_let_run(tmp_path: Path) -> None:
    """All runs last an hour: the one on the only node has 40 minutes to go, or 10 by its limit."""
    sinfo = "\n".join(SINFO.splitlines()[:2])
    for limit, seconds in (("2:00:00", 2400.0), ("30:00", 600.0)):
        queue = [RUNS[0].replace("2:00:00", limit)]
        found = expected_wait(read_slurm_now(files(tmp_path, queue, sinfo=sinfo)), 8)
        assert found.p10_seconds == found.p90_seconds == seconds


def test_a_short_run_fills_the_gap_before_a_large_one(tmp_path: Path) -> None:
    """Eight GPUs of sixteen are free for forty minutes, and a job of sixteen waits for the rest."""
    sinfo = "\n".join(SINFO.splitlines()[:3])
    queue = [*RUNS, "2|PENDING|batch|2|gres/gpu:8|0:00|1:00:00||(Resources)|10"]
    now = read_slurm_now(files(tmp_path, queue, sinfo=sinfo))
    assert expected_wait(now, 8, limit_seconds=1800.0).p90_seconds == 0.0
    assert expected_wait(now, 8, limit_seconds=86400.0).p50_seconds == 2400.0 + 3600.0


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 20)), min_size=1, max_size=4),
       st.integers(1, 4))  # fmt: skip
def test_a_list_of_nodes_names_every_node_once(spans: list[tuple[int, int]], width: int) -> None:
    inside = ",".join(f"{start:0{width}d}-{start + more:0{width}d}" for start, more in spans)
    expected = [f"gpu{number:0{width}d}" for start, more in spans
                for number in range(start, start + more + 1)]  # fmt: skip
    assert host_names(f"gpu[{inside}]") == expected
    assert host_names(",".join(expected)) == expected


def test_launch_says_the_wait_on_slurm_and_what_it_rests_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe, place = tmp_path / "gpt.toml", tmp_path / "cluster.toml"
    recipe.write_text(RECIPE + "dp = 8\nglobal_batch = 8\n")
    place.write_text(
        f'[nodes]\ndevices = 8\n[run]\nfolder = "{tmp_path}/runs"\n[slurm]\ngpu_type = "a100"\n'
    )
    line = ["launch", str(recipe), "--on", "slurm", "--cluster", str(place), "--dry-run"]
    printed = files(tmp_path, RUNS)
    states = [word for path in printed for word in ("--state", str(path))]
    assert main.run([*line, *states]) == 0
    said = capsys.readouterr()
    assert "wait: about 0 s (0 s to 0 s, 8 times of 10): 0 ahead, 1 running" in said.err
    assert "#SBATCH" in said.out
    assert main.run([*line, *states, "--json"]) == 0
    wait = json.loads(capsys.readouterr().out)["wait"]
    assert (wait["p90_seconds"], wait["running"], wait["ended"]) == (0.0, 1, 6)
    assert main.run(line) == 0
    assert "sinfo -N -o" in capsys.readouterr().err
    for given_files, says in [
        (states[:4], "what squeue prints is lacking; print it with squeue -o"),
        ([*states, *states[:2]], "a second file of sacct; give one"),
        ([*states[:2], "--state", str(recipe)], "nothing that sinfo, squeue or sacct prints"),
    ]:
        assert main.run([*line, *given_files]) == 2
        error = capsys.readouterr().err
        assert says in error
        assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("20:00", "soon", "squeue, line 2: TIME is 'soon'"),
        ("2:00:00", "long", "squeue, line 2: TIME_LIMIT is 'long'"),
        ("|gpu01|", "|gpu[01|", "squeue, line 2: NODELIST is 'gpu[01'"),
        ("|None|1", "|None|high", "squeue, line 3: PRIORITY is 'high'"),
        ("|None|1", "", "squeue, line 2: 8 fields under 10"),
    ],
)
def test_a_line_that_makes_no_sense_is_named(old: str, new: str, says: str, tmp_path: Path) -> None:
    rows = [RUNS[0], RUNS[0].replace("RUNNING", "PENDING").replace("gpu01", "")]
    queue = [row.replace(old, new) for row in rows]
    with pytest.raises(InputError, match=says.replace("[", r"\[")):
        read_slurm_now(files(tmp_path, queue))
