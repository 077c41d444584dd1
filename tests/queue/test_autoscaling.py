"""Nodes that come and go: invariants, a hand-counted case, and the search."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline.cli import main
from ridgeline.queue.autoscaling import NodeScaling, play_scaled
from ridgeline.queue.jobs import Jobs, jobs_in_order
from ridgeline.records.node_autoscaling import NodeAutoscaling

JOBS = st.lists(
    st.tuples(st.integers(0, 400), st.integers(1, 90), st.integers(1, 24)), min_size=1, max_size=25
).map(
    lambda rows: jobs_in_order(
        names=[str(place) for place in range(len(rows))],
        submit_seconds=[float(row[0]) for row in rows],
        duration_seconds=[float(row[1]) for row in rows],
        num_gpus=[row[2] for row in rows],
    )
)
SETTINGS = st.builds(
    NodeScaling,
    gpus_per_node=st.sampled_from([4, 8]), min_nodes=st.integers(0, 3),
    max_nodes=st.integers(6, 9), delay_seconds=st.sampled_from([0.0, 7.0, 60.0]),
    idle_seconds=st.sampled_from([0.0, 5.0, 100.0]),
)  # fmt: skip


@settings(max_examples=120, deadline=None)
@given(jobs=JOBS, setting=SETTINGS)
def test_every_job_runs_and_no_more_gpus_than_there_are_nodes(
    jobs: Jobs, setting: NodeScaling
) -> None:
    played = play_scaled(jobs, setting)
    assert (played.start_seconds >= jobs.submit_seconds).all()
    assert played.end_seconds == pytest.approx(played.start_seconds + jobs.duration_seconds)
    assert (played.nodes >= setting.min_nodes).all()
    assert (played.nodes <= setting.max_nodes).all()
    assert (played.busy_gpus <= played.nodes * setting.gpus_per_node).all()
    assert played.busy_gpus[-1] == 0
    did = float(played.busy_gpus[:-1] @ np.diff(played.moments))
    assert did == pytest.approx(jobs.gpu_seconds)
    assert jobs.gpu_seconds <= played.node_seconds * setting.gpus_per_node + 1e-6


@settings(max_examples=40, deadline=None)
@given(jobs=JOBS)
def test_nodes_that_come_at_once_and_without_end_make_nobody_wait(jobs: Jobs) -> None:
    setting = NodeScaling(
        gpus_per_node=8, min_nodes=0, max_nodes=200, delay_seconds=0.0, idle_seconds=0.0
    )
    assert play_scaled(jobs, setting).start_seconds == pytest.approx(jobs.submit_seconds)


def test_a_node_is_paid_for_from_asking_until_it_has_been_idle() -> None:
    jobs = jobs_in_order(
        names=["a", "b", "c"], submit_seconds=[0, 50, 2000], duration_seconds=[100, 10, 100],
        num_gpus=[8, 4, 8],
    )  # fmt: skip
    setting = NodeScaling(
        gpus_per_node=8, min_nodes=0, max_nodes=1, delay_seconds=60.0, idle_seconds=300.0
    )
    played = play_scaled(jobs, setting)
    # One node: a at 60 to 160, b after it to 170; it goes at 470 and comes back for c.
    assert played.start_seconds.tolist() == [60, 160, 2060]
    assert played.node_seconds == 470 + (2160 - 2000)
    assert played.most_nodes == 1


TRACE = "submit_seconds,duration_seconds,num_gpus\n" + "".join(
    f"{600 * place},{900 + 300 * (place % 5)},{1 + 7 * (place % 2)}\n" for place in range(60)
)


def asked(capsys: pytest.CaptureFixture[str], folder: Path, *words: str) -> NodeAutoscaling:
    (folder / "jobs.csv").write_text(TRACE)
    line = ["queue", "simulate", str(folder / "jobs.csv"), *words, "--json"]
    assert main.run(line) == 0
    return msgspec.json.decode(capsys.readouterr().out, type=NodeAutoscaling)


def test_the_cheapest_setting_that_meets_the_objective_is_found(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    words = ["--autoscale", "gpus=8,max=10,delay=5m,price=20", "--wait-objective"]
    loose, tight = (asked(capsys, tmp_path, *words, limit) for limit in ("1h", "1min"))
    for found, limit in ((loose, 3600.0), (tight, 60.0)):
        assert found.best is not None
        assert found.best.p95_wait_seconds <= limit
        cheaper = [one for one in found.settings if one.node_hours < found.best.node_hours]
        assert all(one.p95_wait_seconds > limit for one in cheaper)
        assert found.best.cost_usd == pytest.approx(20 * found.best.node_hours)
        assert found.best.node_hours < found.fixed.node_hours
    assert loose.best is not None
    assert tight.best is not None
    assert loose.best.node_hours < tight.best.node_hours


def test_a_person_reads_the_setting_and_what_it_saves(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "jobs.csv").write_text(TRACE)
    line = [
        "queue",
        "simulate",
        str(tmp_path / "jobs.csv"),
        "--autoscale",
        "gpus=8,max=4,delay=5m,min=0",
    ]
    assert main.run([*line, "--wait-objective", "1s"]) == 0
    assert "no setting meets it" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("--autoscale gpus=8", "--autoscale gpus=8: max is missing"),
        ("--autoscale gpus=8,max=4,delay=5m,colour=1", "--autoscale: no 'colour'; known are"),
        ("--autoscale gpus=8,max=four,delay=5m", "--autoscale: max is 'four'; give a whole number"),
        ("--autoscale gpus=8,max=4,delay=-5m", "--autoscale delay"),
        ("--autoscale gpus=4,max=1,delay=5m", "job line 3 asks for 8 GPUs, which 1 nodes of 4"),
        ("--autoscale gpus=8,max=4,delay=5m,min=5", "--autoscale: min is 5; give 0 to max"),
        ("--wait-objective 5m --gpus 8", "--wait-objective belongs to --autoscale"),
        ("--autoscale gpus=8,max=4,delay=5m --gpus 8", "--autoscale brings its own nodes"),
        ("--autoscale gpus=8,max=4,delay=5m,price=-1", "--autoscale: price is '-1'"),
    ],
)
def test_what_is_no_autoscaler_is_one_line(
    words: str, says: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "jobs.csv").write_text(TRACE)
    assert main.run(["queue", "simulate", str(tmp_path / "jobs.csv"), *words.split()]) == 2
    said = capsys.readouterr().err.strip()
    assert says in said
    assert "\n" not in said
