"""A pipeline tuned through the command, its files, and what is refused."""

import json
import textwrap
from collections.abc import Sequence
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
import torch

from ridgeline.cli.main import run
from ridgeline.errors import InputError
from ridgeline.realtime.pipeline import read_pipeline
from ridgeline.realtime.recording import record, replay
from ridgeline.realtime.rewriting.layers import ranks_of
from ridgeline.realtime.tuning.job import STACK_NAME, run_options, write_stack
from ridgeline.realtime.tuning.measured import measure, verdict_words
from ridgeline.realtime.tuning.sides import SideProcess
from ridgeline.realtime.tuning.wire import AppliedCure, OpenSide, SideOpened

TWINS = textwrap.dedent(
    '''
    """Two tasks with an encoder each, of equal weights."""

    import torch
    from torch import nn
    from ridgeline.realtime.pipeline import Pipeline

    def encoder():
        torch.manual_seed(1)
        return nn.Sequential(nn.Conv2d(3, 32, 5, 1, 2), nn.ReLU(), nn.Conv2d(32, 32, 5, 1, 2))

    class Task:
        def __init__(self):
            self.encoder = encoder()

        def __call__(self, image):
            with torch.no_grad():
                return self.encoder(image).mean()

    pipeline = Pipeline("twins")
    def image(frame):
        return torch.full((1, 3, 48, 48), frame / 9)

    camera = pipeline.sensor("camera", image, rate="60Hz")
    first = pipeline.stage("first", Task(), camera)
    second = pipeline.stage("second", Task(), camera)
    pipeline.stage("sum", lambda a, b: a + b, first, second)
    '''
)
SHARED = AppliedCure(
    name="shared-backbones", options={"groups": "first:encoder, second:encoder", "answers": 2}
)


@pytest.fixture
def twins(tmp_path: Path) -> Path:
    path = tmp_path / "twins.py"
    path.write_text(TWINS)
    return path


@pytest.mark.slow
def test_twins_are_tuned_by_a_factor_and_the_tuned_pipeline_gives_the_same(
    twins: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    words = ["realtime", "tune", str(twins), "--out", str(out), "--only", "shared-backbones"]
    assert run([*words, "--budget", "60s", "--json"]) == 0
    ledger = json.loads(capsys.readouterr().out)
    (row,) = ledger["rows"]
    assert row["kept"], row["reason"]
    assert ledger["cumulative"] > 1.2
    assert ledger["verified"]
    assert {path.name for path in out.iterdir()} == {
        "ledger.json", "report.html", "stack.toml", "tuned.py"
    }  # fmt: skip
    recording = record(read_pipeline(str(twins)), 4)
    before, after = (
        replay(read_pipeline(str(path)), recording, range(4)).results["sum"]
        for path in (twins, out / "tuned.py")
    )
    for (frame, value), (other, tuned) in zip(before, after, strict=True):
        assert frame == other
        torch.testing.assert_close(tuned, value)


SIX_EMPTY_STAGES = textwrap.dedent(
    '''
    """Stages that cost nothing, which a hand-over between processes can only make slower."""

    from ridgeline.realtime.pipeline import Pipeline

    pipeline = Pipeline("empty")
    node = pipeline.sensor("camera", lambda frame: frame, rate="100Hz")
    for number in range(6):
        node = pipeline.stage(f"stage{number}", lambda frame: frame, node)
    '''
)


class ScriptedSide(SideProcess):
    """A side whose blocks take what is written."""

    def __init__(self, seconds: Sequence[float]) -> None:
        self._seconds = iter(seconds)

    def ask(self, order: Any, kind: type[Any], *, until: float | None = None) -> Any:
        latencies = [next(self._seconds)] * order.frames
        return kind(latencies=latencies, stage_seconds={}, delivered=1, sent=1, seconds=1.0)


@pytest.mark.parametrize(
    ("taken", "rounds", "hopeless"),
    [
        ([0.10, 0.10], 2, True),
        ([0.10, 0.05, *[0.10] * 10], 12, False),  # one of two proves nothing
        ([0.065] * 3, 3, False),  # not so slow, and known after the first look
    ],
)
def test_only_two_rounds_that_both_lose_by_far_end_a_trial_before_its_first_look(
    taken: list[float], rounds: int, hopeless: bool
) -> None:
    before = ScriptedSide([0.05, 0.10] * 6 if rounds == 12 else [0.05] * rounds)
    found = measure(
        before, ScriptedSide(taken), watched="p50", period_seconds=0.1, bar=1.02,
        until=monotonic() + 60, on_progress=lambda _: None,
    )  # fmt: skip
    assert (len(found.a_rounds), found.hopeless) == (rounds, hopeless)
    said = verdict_words(found, kept=False, bar=1.02)
    assert said.startswith("given up after 2 rounds of 0.500× and 0.500×") is hopeless


@pytest.mark.slow
def test_a_trial_that_loses_two_rounds_by_far_is_given_up(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "empty.py"
    path.write_text(SIX_EMPTY_STAGES)
    words = ["realtime", "tune", str(path), "--out", str(tmp_path / "out"), "--only", "executor"]
    assert run([*words, "--frames", "24", "--budget", "120s", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    row = next(one for one in rows if one["options"] == {"executor": "processes"})
    assert not row["kept"]
    assert row["rounds"] == 2
    assert row["reason"].startswith("given up after 2 rounds of 0.")
    assert row["multiplier"] < 0.6


def test_a_stack_is_read_back_with_its_cures(twins: Path, tmp_path: Path) -> None:
    tuned = read_pipeline(str(write_stack(tmp_path / "deep" / "out", str(twins), [SHARED])))
    assert all(ranks_of(tuned.code[name].call.encoder) for name in ("first", "second"))


def test_a_stack_that_no_longer_fits_says_which_cure(twins: Path, tmp_path: Path) -> None:
    gone = AppliedCure(name="channels-last", options={"modules": "third:encoder"})
    path = write_stack(tmp_path, str(twins), [gone])
    with pytest.raises(InputError, match=r"stack.toml: channels-last: no module 'third:encoder'"):
        read_pipeline(str(path))
    (tmp_path / STACK_NAME).write_text('pipeline = "twins.py"\n[[cure]]\nname = "magic"\n')
    with pytest.raises(InputError, match="no cure 'magic'; known:"):
        read_pipeline(str(path))


def test_options_of_a_run_follow_from_the_stack() -> None:
    stack = [
        AppliedCure(name="executor", options={"executor": "threads"}),
        AppliedCure(name="steady-process"),
    ]
    assert run_options(stack, threads=1) == "--executor threads --steady"
    assert run_options([SHARED], threads=1) == ""


@pytest.mark.slow
def test_a_stage_that_raises_ends_with_one_line(twins: Path, tmp_path: Path) -> None:
    twins.write_text(TWINS.replace("lambda a, b: a + b", "lambda a, b: a / 0 + None"))
    side = SideProcess(tmp_path / "log")
    order = OpenSide(
        pipeline=str(twins), stack=[], recording=str(tmp_path / "recording"), frames=24, prime=12,
        results=str(tmp_path / "results"),
    )  # fmt: skip
    try:
        with pytest.raises(InputError, match="stage sum raised on frame 0: TypeError"):
            side.ask(order, SideOpened)
    finally:
        side.close()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--only", "warp-drive"], "no cure 'warp-drive'; known: "),
        (["--frames", "3"], "--frames 3: give 24 or more"),
        (["--threshold", "-1"], "--threshold -1: give 0 or more"),
    ],
)
def test_bad_options_are_refused_before_anything_is_run(
    words: list[str], message: str, twins: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["realtime", "tune", str(twins), *words]) == 2
    assert message in capsys.readouterr().err
