"""`ridgeline bisect` on real repositories: found, skipped, refused, interrupted and gone on."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

PROGRAM = [sys.executable, "-m", "ridgeline.cli.main", "bisect"]
WORK = """\
import os
print(f"did the work in {{{work} * (1 + os.getpid() % 7 / 1000):.6f}} s")
"""
"""Prints seconds that vary by some thousandths, and as much on a busy machine as on a quiet one."""
FAST, SLOW = 0.01, 0.04


class History:
    """A repository whose commits each write `work.py`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.commits: list[str] = []
        folder.mkdir()
        self.git("init", "--quiet", "--initial-branch=main")
        self.git("config", "user.name", "Ada")
        self.git("config", "user.email", "ada@example.org")

    def git(self, *words: str) -> str:
        environment = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
        environment |= {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
        return subprocess.run(
            ["git", *words], cwd=self.folder, check=True, capture_output=True, text=True,
            env=environment,
        ).stdout  # fmt: skip

    def commit(self, source: str, subject: str) -> str:
        (self.folder / "work.py").write_text(source + f"# {subject}\n")
        self.git("add", "work.py")
        self.git("commit", "--quiet", "-m", subject)
        self.commits.append(self.git("rev-parse", "HEAD").strip())
        return self.commits[-1]

    def state(self) -> dict[str, str]:
        """Every file of the folder, `.git` included, by its content."""
        return {
            str(path.relative_to(self.folder)): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in sorted(self.folder.rglob("*"))
            if path.is_file()
        }


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where answers are kept, and the folder for temporary files, both of this test alone."""
    (tmp_path / "temporary").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    # `python` is this one, and no shim that takes longer than the work to find it.
    folders = [str(Path(sys.executable).parent), os.environ["PATH"]]
    monkeypatch.setenv("PATH", os.pathsep.join(folders))
    return tmp_path / "cache" / "ridgeline" / "bisect"


@pytest.fixture(scope="module")
def eight(tmp_path_factory: pytest.TempPathFactory) -> History:
    """Eight commits; the sixth does four times the work, the fourth cannot be run."""
    history = History(tmp_path_factory.mktemp("eight") / "repository")
    for number in range(1, 9):
        work = SLOW if number >= 6 else FAST
        source = WORK.format(work=work) if number != 4 else "import no_such_module\n"
        history.commit(source, "Sum more carefully" if number == 6 else f"Change {number}")
    (history.folder / "notes.txt").write_text("mine\n")  # untracked, and the tree is dirty:
    (history.folder / "work.py").write_text("raise SystemExit('not me')\n")
    return history


def bisect(history: History, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*PROGRAM, *words], cwd=history.folder, capture_output=True, text=True, check=False
    )


def answer(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert done.returncode == 0, done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def test_the_slow_commit_is_found_and_the_checkout_is_as_it_was(
    eight: History, tmp_path: Path, own_cache: Path
) -> None:
    first, last = eight.commits[0], eight.commits[-1]
    before = eight.state()
    done = bisect(eight, first, last, "--json", "--", "python", "work.py")
    found = answer(done)
    assert found["culprit"]["sha"] == eight.commits[5]
    assert (found["culprit"]["author"], found["culprit"]["subject"]) == (
        "Ada",
        "Sum more carefully",
    )
    assert found["parent"]["sha"] == eight.commits[4]
    assert found["timed"] == "printed time"
    assert found["proven"]
    assert 1.2 < found["ci_low"] <= found["ratio"] <= found["ci_high"] < 12
    verdicts = {probe["commit"]["sha"]: probe["verdict"] for probe in found["probes"]}
    expected = {eight.commits[3]: "skipped", eight.commits[4]: "good", eight.commits[5]: "bad",
                eight.commits[6]: "bad", eight.commits[2]: "good",
                eight.commits[1]: "good"}  # fmt: skip
    assert all(expected[sha] == verdict for sha, verdict in verdicts.items())
    assert eight.commits[3] in verdicts, "the middle was asked first"
    assert "6 commits left, about 3 steps: asking" in done.stderr
    assert eight.state() == before
    assert not list((tmp_path / "temporary").iterdir()), "the checkouts are gone"
    assert not list(own_cache.iterdir()), "nothing is left to go on from"


@pytest.mark.slow
def test_a_person_reads_commit_author_subject_and_ratio(eight: History) -> None:
    # The fifth commit is fast and the sixth slow: the ends are neighbours.
    done = bisect(eight, "HEAD~3", "HEAD~2", "--", "python", "work.py")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{eight.commits[5][:10]} Sum more carefully\nAda, 20")
    assert "× the time [" in done.stdout


@pytest.mark.slow
def test_commits_that_were_never_slower_are_one_line_and_exit_code_2(eight: History) -> None:
    done = bisect(eight, "HEAD~2", "HEAD", "--rounds", "4", "--", "python", "work.py")
    assert done.returncode == 2
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("ridgeline: ")]
    assert "no regression between" in line
    assert "beyond noise and 5%" in line


@pytest.mark.sweep(every=11)
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["no-such", "HEAD", "--", "true"], "no commit 'no-such'"),
        (["HEAD", "HEAD~1", "--", "true"], "is no ancestor of"),
        (["HEAD", "HEAD", "--", "true"], "are the same commit"),
        (["HEAD~4", "HEAD", "--", "python", "work.py"], "cannot be measured: exit code 1: Module"),
        (["HEAD~1", "HEAD", "--", "no-such-program"], "no-such-program: No such file"),
        (["HEAD~1", "HEAD", "--rounds", "2", "--", "true"], "--rounds 2: give 3 to 40"),
        (["HEAD~1", "HEAD", "--threshold", "-1", "--", "true"], "--threshold -1.0: must be 0"),
        (["HEAD~1", "HEAD", "--metric", "fast", "--", "true"], "--metric fast: give median, mean"),
        (["HEAD~1", "HEAD", "--metric", "p99", "--", "python", "work.py"], "p99 needs 100 times"),
        (["HEAD~1", "HEAD", "--link", "data", "--", "true"], "--link data: no such file"),
        (["HEAD~1", "HEAD", "--repo", "absent", "--", "true"], "--repo absent: no such folder"),
    ],
)
def test_what_cannot_be_searched_is_one_line_that_says_why(
    eight: History, words: list[str], said: str, tmp_path: Path
) -> None:
    done = bisect(eight, *words)
    assert done.returncode == 2
    assert done.stdout == ""
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("ridgeline: ")]
    assert said in line
    assert not list((tmp_path / "temporary").iterdir())


def test_outside_of_a_repository_is_one_line(tmp_path: Path) -> None:
    done = subprocess.run(
        [*PROGRAM, "a", "b", "--", "true"], cwd=tmp_path, capture_output=True, text=True,
        check=False, env=os.environ | {"GIT_CEILING_DIRECTORIES": str(tmp_path.parent)},
    )  # fmt: skip
    assert done.returncode == 2
    assert "not a git repository" in done.stderr
    assert done.stderr.count("\n") == 1


def wait_for(condition: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.slow
def test_an_interrupted_search_leaves_no_checkout_and_goes_on(
    eight: History, tmp_path: Path, own_cache: Path
) -> None:
    words = [eight.commits[0], eight.commits[-1], "--json", "--", "python", "work.py"]
    process = subprocess.Popen(
        [*PROGRAM, *words], cwd=eight.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    whole = "?" * 16 + ".json"  # what is still being written has another name
    wait_for(lambda: any(b"skipped" in one.read_bytes() for one in own_cache.glob(whole)), process)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "the same command goes on" in errors.splitlines()[-1]
    assert not list((tmp_path / "temporary").iterdir())
    done = bisect(eight, *words)
    assert answer(done)["culprit"]["sha"] == eight.commits[5]
    assert "asked already" in done.stderr


@pytest.mark.slow
def test_where_the_slow_commit_hides_among_broken_ones_all_are_named(tmp_path: Path) -> None:
    history = History(tmp_path / "broken")
    history.commit(WORK.format(work=FAST), "Good")
    for number in (1, 2):
        history.commit("raise SystemExit('broken on purpose')\n", f"Broken {number}")
    history.commit(WORK.format(work=SLOW), "Repaired")
    done = bisect(history, "HEAD~3", "HEAD", "--json", "--", "python", "work.py")
    assert done.returncode == 1
    found = json.loads(done.stdout)
    assert found["culprit"] is None
    assert [commit["subject"] for commit in found["suspects"]] == [
        "Broken 1", "Broken 2", "Repaired",
    ]  # fmt: skip
    assert all("broken on purpose" in probe["reason"] for probe in found["probes"])
    assert "one of 3 commits" in done.stderr.splitlines()[-1]


@pytest.mark.slow
def test_a_merge_is_one_step_and_says_how_to_search_its_branch(tmp_path: Path) -> None:
    history = History(tmp_path / "merged")
    base = history.commit(WORK.format(work=FAST), "Start")
    history.git("checkout", "--quiet", "-b", "side")
    history.commit(WORK.format(work=SLOW), "Slow on the side")
    history.git("checkout", "--quiet", "main")
    (history.folder / "other.txt").write_text("unrelated\n")
    history.git("add", "other.txt")
    history.git("commit", "--quiet", "-m", "Something else")
    history.git("merge", "--quiet", "--no-ff", "-m", "Merge the side", "side")
    found = answer(bisect(history, base, "HEAD", "--json", "--", "python", "work.py"))
    assert found["culprit"]["subject"] == "Merge the side"
    assert any(f"ridgeline bisect {base[:10]} " in note for note in found["notes"])


@pytest.mark.slow
def test_a_path_into_the_users_checkout_means_the_commits_own_file(eight: History) -> None:
    script = str(eight.folder / "work.py")  # in the user's checkout it fails at once
    found = answer(bisect(eight, "HEAD~3", "HEAD~2", "--json", "--", "python", script))
    assert found["culprit"]["sha"] == eight.commits[5]


@pytest.mark.slow
def test_untracked_data_is_linked_where_it_is_asked_for(tmp_path: Path) -> None:
    history = History(tmp_path / "with-data")
    source = WORK.format(work="float(open('data/size.txt').read()) * TIMES")
    history.commit(source.replace("TIMES", "1"), "Read the size")
    history.commit(source.replace("TIMES", "2"), "Twice the size")
    (history.folder / "data").mkdir()
    (history.folder / "data" / "size.txt").write_text(str(FAST))
    words = ["HEAD~1", "HEAD", "--json", "--link", "data", "--", "python", "work.py"]
    assert answer(bisect(history, *words))["culprit"]["subject"] == "Twice the size"


@pytest.mark.slow
def test_a_record_that_the_command_prints_is_what_is_timed(tmp_path: Path) -> None:
    history = History(tmp_path / "records")
    source = """\
import json, random
steps = [0.01 * (1 + 0.001 * random.random()) for _ in range(200)]
steps[::20] = [{spike} * step for step in steps[::20]]
print(json.dumps({{"record": "profile", "step_samples": steps}}))
"""
    history.commit(source.format(spike=2.0), "Even")
    history.commit(source.format(spike=6.0), "Long steps")
    refused = bisect(history, "HEAD~1", "HEAD", "--rounds", "4", "--", "python", "work.py")
    assert refused.returncode == 2, "the median did not move"
    words = ["HEAD~1", "HEAD", "--json", "--metric", "p99", "--", "python", "work.py"]
    found = answer(bisect(history, *words))
    assert (found["timed"], found["metric"]) == ("step", "p99")
    assert found["ratio"] == pytest.approx(3.0, rel=0.02)


@pytest.mark.slow
def test_the_steps_of_a_training_script_are_measured_as_by_doctor(tmp_path: Path) -> None:
    history = History(tmp_path / "training")
    source = """\
import torch
torch.set_num_threads(1)
model = torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(LAYERS)])
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
batch = torch.randn(64, 256)
for step in range(400):
    optimizer.zero_grad()
    model(batch).square().mean().backward()
    optimizer.step()
"""
    for layers in (4, 20):
        history.commit(source.replace("LAYERS", str(layers)), f"{layers} layers")
    words = ["HEAD~1", "HEAD", "--json", "--rounds", "8", "--", "work.py"]
    found = answer(bisect(history, *words))
    assert found["culprit"]["subject"] == "20 layers"
    assert found["timed"] == "step"
    assert found["ci_low"] > 1.2
