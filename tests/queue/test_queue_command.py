"""`ridgeline queue simulate` as it is typed: readers, what is refused, the page."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from ridgeline.cli import main
from ridgeline.records.queue_simulation import QueueSimulation
from ridgeline.records.queue_submission import QueueSubmission

JOBS = """name,submit_seconds,duration_seconds,num_gpus,queue
a,0,600,8,vision
b,60,1200,4,vision
c,120,60,4,language
d,180,60,1,language
"""
SACCT = """JobID|Submit|ElapsedRaw|State|Partition|AllocTRES
1|2026-01-05T10:00:00|600|COMPLETED|gpu|billing=8,cpu=8,gres/gpu:a100=8,gres/gpu=8,node=1
1.batch|2026-01-05T10:00:00|600|COMPLETED||cpu=8
2|2026-01-05T10:01:00|1200|CANCELLED by 1001|gpu|cpu=4,gres/gpu:h100=2,gres/gpu:a100=2
3|2026-01-05T10:02:00|60|FAILED|debug|cpu=4,gres/gpu=4
4|2026-01-05T10:03:00|60|TIMEOUT|debug|cpu=1,gres/gpu=1
5|2026-01-05T10:04:00|0|PENDING|gpu|
6|2026-01-05T10:04:00|50|COMPLETED|cpu|cpu=1
"""


def simulated(capsys: pytest.CaptureFixture[str], *words: str) -> QueueSimulation:
    assert main.run(["queue", "simulate", *words, "--json"]) == 0
    return msgspec.json.decode(capsys.readouterr().out, type=QueueSimulation)


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "jobs.csv"
    path.write_text(JOBS)
    return path


def test_policies_stand_side_by_side(
    capsys: pytest.CaptureFixture[str], trace: Path, tmp_path: Path
) -> None:
    page = tmp_path / "page.html"
    words = ["queue", "simulate", str(trace), "--gpus", "8", "--policy", "all"]
    assert main.run([*words, "--html", str(page)]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in ("fifo-skip", "conservative", "las"))
    assert "Mean wait by queue" in shown
    assert "jobs that wait" in page.read_text()


def test_the_page_and_the_document_are_made_of_the_same_figures(
    capsys: pytest.CaptureFixture[str], trace: Path
) -> None:
    found = simulated(capsys, str(trace), "--gpus", "8", "--policy", "fifo")
    (fifo,) = found.policies
    # a runs at 0, b and c when it ends, d when c ends.
    assert fifo.mean_wait_seconds == (0 + 540 + 480 + 480) / 4
    assert [one.group for one in fifo.by_size] == ["1", "2-4", "5-8"]
    assert {one.group: one.mean_wait_seconds for one in fifo.by_queue} == {
        "vision": 270.0,
        "language": 480.0,
    }
    line = fifo.timeline
    worked = sum(line.busy_gpus) * line.stretch_seconds
    assert worked == pytest.approx(8 * 600 + 4 * 1200 + 4 * 60 + 60)


def test_what_sacct_prints_is_the_same_trace(
    capsys: pytest.CaptureFixture[str], trace: Path, tmp_path: Path
) -> None:
    printed = tmp_path / "sacct.txt"
    printed.write_text(SACCT)
    ours, theirs = (
        simulated(capsys, str(path), "--gpus", "8", "--policy", "fifo") for path in (trace, printed)
    )
    assert theirs.jobs == 4
    assert theirs.policies[0].mean_wait_seconds == ours.policies[0].mean_wait_seconds
    assert theirs.notes[:2] == ["1 job without GPUs was left out.",
                                "1 job waiting or running was left out."]  # fmt: skip
    assert "Kinds of GPU" in theirs.notes[2]  # a pool has none


def test_elastic_jobs_on_fewer_gpus_use_no_more_than_there_are(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "jobs.csv"
    head = "submit_seconds,duration_seconds,num_gpus,min_gpus,max_gpus,parallel_share\n"
    path.write_text(head + "0,1000,8,4,8,0.5\n0,1000,8,4,8,0.5\n")
    one = simulated(capsys, str(path), "--gpus", "8", "--policy", "fifo-skip").policies[0]
    assert one.utilisation == pytest.approx(1.0)
    assert one.wasted_gpu_hours == pytest.approx(0.0)


def test_one_more_job_is_asked_about(capsys: pytest.CaptureFixture[str], trace: Path) -> None:
    words = [str(trace), "--gpus", "8", "--policy", "fifo", "--add", "8x1h@30s"]
    added = simulated(capsys, *words).policies[0].added
    assert added is not None
    assert added.wait_seconds == 570.0
    assert added.others_mean_wait_change_seconds == 3600.0 * 3 / 4


def test_intervals_hold_the_means_of_redrawn_traces(
    capsys: pytest.CaptureFixture[str], trace: Path
) -> None:
    found = simulated(capsys, str(trace), "--gpus", "8", "--redraw", "5").policies[0]
    assert found.mean_wait_interval is not None
    low, high = found.mean_wait_interval
    assert 0 <= low < high


def test_two_seeds_share_no_redrawn_trace(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "jobs.csv"
    rows = [f"{number},{60 * number},{100 + 37 * number % 900},4" for number in range(60)]
    path.write_text("\n".join(["name,submit_seconds,duration_seconds,num_gpus", *rows]))
    words = [str(path), "--gpus", "8", "--policy", "fifo", "--redraw", "2", "--seed"]
    first, second = (simulated(capsys, *words, seed).policies[0] for seed in "01")
    assert first.mean_wait_seconds == second.mean_wait_seconds
    assert first.mean_wait_interval
    assert second.mean_wait_interval
    assert not {*first.mean_wait_interval} & {*second.mean_wait_interval}


def test_a_long_last_job_is_not_taken_for_idle_gpus_before_it(
    capsys: pytest.CaptureFixture[str], trace: Path
) -> None:
    with trace.open("a") as file:
        file.write("e,180,1000000,1,language\n")
    (fifo,) = simulated(capsys, str(trace), "--gpus", "8", "--policy", "fifo").policies
    assert fifo.utilisation < 0.2
    assert fifo.held_until_last_submission == 1.0  # a holds all eight until after the last came


def test_jobs_that_come_at_once_have_no_time_until_the_last(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "jobs.csv"
    path.write_text("submit_seconds,duration_seconds,num_gpus\n0,60,4\n0,60,8\n")
    (fifo,) = simulated(capsys, str(path), "--gpus", "8", "--policy", "fifo").policies
    assert fifo.held_until_last_submission is None


@pytest.mark.sweep(every=5)
@pytest.mark.parametrize(
    ("content", "words", "says"),
    [
        (JOBS, "--gpus 4", "job a asks for 8 GPUs, which the empty cluster of 4 does not have"),
        (JOBS, "--gpus 4", "give a larger cluster, or --skip-unfit to leave such jobs out"),
        (JOBS.replace("a,0,", "a,-5,"), "--gpus 8",
         "jobs.csv, line 2: submit_seconds is '-5'; give seconds, 0 or more"),
        (JOBS.replace("b,60", "a,60"), "--gpus 8",
         "jobs.csv, line 3: job 'a' stands in line 2 already; give each a name of its own"),
        (JOBS.replace("600,8,", "600,1.5,"), "--gpus 8",
         "jobs.csv, line 2: num_gpus is '1.5'; give whole GPUs, or a part of one"),
        (JOBS.replace("600,8,", "soon,8,"), "--gpus 8",
         "jobs.csv, line 2: duration_seconds is 'soon'; give seconds, 0 or more"),
        (JOBS.replace("queue", "prioritty"), "--gpus 8",
         "a column 'prioritty'; is it to be priority?"),
        (JOBS.replace("queue", "gpu_type"), "--gpus 8",
         "job a asks for 8 GPUs of type vision and 3 more jobs, which the empty cluster"),
        (JOBS.replace("queue", "topology"), "--gpus 8",
         "line 2: topology is 'vision'; give required:LEVEL or preferred:LEVEL, of node, nvlink"),
        (JOBS.replace("num_gpus", "size"), "--gpus 8", "no column num_gpus"),
        (JOBS, "--gpus 8 --policy round-robin", "--policy round-robin: known are conservative,"),
        (JOBS, "--gpus 8 --queue speech", "has no such queue; it has vision, language"),
        (JOBS, "--gpus 8 --add 8", "--add 8: no job; write GPUs x time as 8x2h"),
        (JOBS, "--gpus 8 --add 9x1h", "--add asks for 9 GPUs, which the empty cluster of 8"),
        (JOBS, "", "give the cluster as --gpus N or as --cluster FILE, one of them"),
        (JOBS, "--gpus 0", "--gpus: a cluster needs at least one GPU"),
    ],
)  # fmt: skip
def test_bad_input_is_one_line_that_says_where(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, content: str, words: str, says: str
) -> None:
    path = tmp_path / "jobs.csv"
    path.write_text(content)
    assert main.run(["queue", "simulate", str(path), *words.split()]) == 2
    said = capsys.readouterr().err
    assert says in said
    assert said.count("\n") == 1


def test_jobs_that_cannot_fit_are_left_out_only_when_told(
    capsys: pytest.CaptureFixture[str], trace: Path
) -> None:
    found = simulated(capsys, str(trace), "--gpus", "4", "--skip-unfit")
    assert (found.jobs, found.left_out) == (3, 1)


FLAVORED = "[[nodes]]\ncount = 1\ngpus = 8\ngpu_type = 'h100'\n[flavors.x]\ngpu_type = 'h100'\n"


def test_one_gpu_of_an_unknown_type_is_told_as_what_it_is(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path, cluster = tmp_path / "jobs.csv", tmp_path / "cluster.toml"
    head = "name,submit_seconds,duration_seconds,num_gpus,gpu_type\n"
    path.write_text(f"{head}a,0,60,1,b2000\nb,0,60,2,b2000\nc,0,60,1,h100\n")
    cluster.write_text('[[nodes]]\ncount = 1\ngpus = 8\ngpu_type = "h100"\n')
    line = ["queue", "simulate", str(path), "--cluster", str(cluster), "--policy", "fifo"]
    assert main.run(line) == 2
    assert "job a asks for 1 GPU of type b2000 and 1 more job, " in capsys.readouterr().err
    assert main.run([*line, "--skip-unfit"]) == 0
    shown = capsys.readouterr().out
    assert "do not fit, left out 2" in " ".join(shown.split())
    assert "too large" not in shown


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("gpus = 8\nnode_mtbf_hours = 9.0\n", "node_mtbf_hours needs nodes"),
        ("gpus = 8\n[[nodes]]\ncount = 1\ngpus = 8\n", "gpus and nodes are both given"),
        ("gpus = 8\nrestart_seconds = -1.0\n", "restart_seconds is -1; give 0 or more"),
        ("gpus = 8\n[queues.a]\nweight = 0.0\n", "queues.a: weight is above 0"),
        ("gpus = 8\ncolour = 1\n", "unknown field `colour`"),
        ("gpus = 8\n[flavors.x]\ngpu_type = 'h100'\n", "flavors.x: gpu_type 'h100' is to be that"),
        (f"{FLAVORED}[queues.a]\nflavors = [{{name = 'y'}}]\n", "flavor 'y' is to be one of"),
        (f"{FLAVORED}[queues.a]\nquota = 2\n", "queues.a: of which flavor is its quota?"),
        (
            f"{FLAVORED}[queues.a]\nlending_limit = 2\nflavors = [{{name = 'x'}}]\n",
            "queues.a: quota and limits belong to its flavors",
        ),
        (
            f"{FLAVORED}[queues.a]\ncores = {{quota = -1}}\n",
            "queues.a: cores: quota and limits are 0",
        ),
        (
            f"{FLAVORED}[queues.a]\ncores = {{quota = 4}}\n",
            "a quota of cores needs cpus of all nodes",
        ),
        (
            "[[nodes]]\ncount = 1\ngpus = 8\n[[nodes]]\ncount = 2\ngpus = -4\n",
            "nodes[1] is 2 nodes of -4 GPUs",
        ),
        ('gpus = 8\n[network]\ndevice = "hoppper"\n', "network.device: unknown device 'hoppper'"),
    ],
)
def test_a_cluster_file_that_makes_no_sense_is_refused(
    capsys: pytest.CaptureFixture[str], trace: Path, tmp_path: Path, text: str, says: str
) -> None:
    path = tmp_path / "cluster.toml"
    path.write_text(text)
    assert main.run(["queue", "simulate", str(trace), "--cluster", str(path)]) == 2
    said = capsys.readouterr().err
    assert says in said
    assert "cluster.toml" in said


def test_a_recipe_is_asked_about_before_it_is_submitted(
    capsys: pytest.CaptureFixture[str], trace: Path, tmp_path: Path
) -> None:
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(
        '[model]\nconfig = "gpt2"\n[data]\npath = "text.txt"\nseq = 64\n[optimizer]\n'
        "learning_rate = 1e-3\nfinal_learning_rate = 1e-4\n"
        "[layout]\ndp = 8\nglobal_batch = 8\n[run]\nsteps = 3600\n"
        "[prediction]\nstep_seconds = 1.0\ntokens_per_second_per_gpu = 64.0\npeak_bytes = 1e9\n"
    )
    line = ["queue", "simulate", str(trace), "--gpus", "8", "--policy", "fifo",
            "--submit", str(recipe)]  # fmt: skip
    assert main.run([*line, "--json"]) == 0
    found = msgspec.json.decode(capsys.readouterr().out, type=QueueSubmission)
    (fifo,) = found.policies
    assert (found.num_gpus, found.duration_seconds, found.submit_seconds) == (8, 3600.0, 120.0)
    # It comes with c, behind it in the file's order; d alone waits for it.
    assert {job.job for job in fifo.most_delayed} == {"d"}
    assert fifo.delayed_jobs == 1
    assert fifo.by_queue["vision"] == 0.0
    assert main.run(line) == 0
    assert "Who waits longer under fifo" in capsys.readouterr().out
    assert main.run([*line[:4], "4", *line[5:]]) == 2
    assert "asks for 8 GPUs" in capsys.readouterr().err
