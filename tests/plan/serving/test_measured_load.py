"""One load point of the user's own moves all predictions of the same system."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ridgeline.errors import InputError
from ridgeline.models import load_model
from ridgeline.plan.serving.coefficients import read_calibration
from ridgeline.plan.serving.estimate import estimate_serving
from ridgeline.plan.serving.measured import calibrate, read_measured
from ridgeline.plan.serving.published import ServedLoad
from ridgeline.plan.serving.question import ServingQuestion, replica_of

CLOSED = ServedLoad(kind="closed", number=16.0)


def asked(tp: int = 2) -> ServingQuestion:
    return replica_of(
        load_model("llama-3-8b"), "h100", tp=tp, weights="fp8", prompt=1000.0, completion=200.0
    )


def written(path: Path, content: object) -> Path:
    file = path / "run.json"
    file.write_text(json.dumps(content))
    return file


@pytest.mark.parametrize("share", [0.8, pytest.param(1.3, marks=pytest.mark.slow)])
def test_one_point_moves_other_loads_and_layouts_the_same_way(share: float, tmp_path: Path) -> None:
    before = estimate_serving(asked(), CLOSED)
    point = {"users": 16, "tpot_seconds": before.tpot_seconds.value * share}
    known, changes = calibrate(read_measured(written(tmp_path, point), asked()), read_calibration())
    assert changes
    after = estimate_serving(asked(), CLOSED, known)
    assert after.tpot_seconds.value == pytest.approx(before.tpot_seconds.value * share, rel=0.1)
    for replica, load in ((asked(tp=4), CLOSED), (asked(), ServedLoad(kind="closed", number=64.0))):
        old, new = estimate_serving(replica, load), estimate_serving(replica, load, known)
        moved = new.tpot_seconds.value / old.tpot_seconds.value
        assert (moved - 1.0) * (share - 1.0) > 0.0
        assert min(share, 1.0) * 0.95 < moved < max(share, 1.0) * 1.05


def test_a_measured_point_narrows_the_interval(tmp_path: Path) -> None:
    before = estimate_serving(asked(), CLOSED)
    point = {"users": 16, "ttft_seconds": before.ttft_seconds.value}
    known, _ = calibrate(read_measured(written(tmp_path, point), asked()), read_calibration())
    after = estimate_serving(asked(), CLOSED, known)
    assert after.ttft_seconds.value == pytest.approx(before.ttft_seconds.value, rel=0.02)
    for name in ("ttft_seconds", "tpot_seconds", "output_tokens_per_second"):
        old, new = getattr(before, name), getattr(after, name)
        assert new.interval[1] / new.value <= old.interval[1] / old.value
    assert after.tpot_seconds.interval[1] < before.tpot_seconds.interval[1]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"users": 16}, "give ttft_seconds"),
        ({"ttft_seconds": 16}, "give users or rate"),
        ({"users": 4, "tpot_seconds": -1}, "above 0"),
        ({"users": 4, "tpot_seconds": 9, "mood": 3}, "mood"),
        ({"users": 4, "tpot_seconds": 0.01, "prompt": -5}, ">= 1"),
        ({"users": 4, "tpot_seconds": 0.01, "answer": 1e300}, "<= 1"),
        ({"users": 4, "tpot_seconds": 0.01, "tp": 0}, ">= 1"),
        ({"users": 4, "tpot_seconds": 0.01, "tp": 3}, "run.json: tp 3 does not divide"),
        ({"users": 1e308, "tpot_seconds": 0.01}, "<= 1"),
        ([], "0 points"),
        (7, "Expected `object`"),
    ],
)
def test_a_file_that_says_too_little_is_refused(
    content: object, words: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=words):
        read_measured(written(tmp_path, content), asked())


@pytest.mark.parametrize(
    ("figure", "words"),
    [
        ({"tpot_seconds": 9.1}, "give seconds"),
        ({"ttft_seconds": 1e-9}, "give seconds"),
        ({"output_tokens_per_second": 0.01}, "give tokens per second"),
    ],
)
def test_a_figure_in_another_unit_is_refused(
    figure: dict[str, float], words: str, tmp_path: Path
) -> None:
    points = read_measured(written(tmp_path, {"users": 16, **figure}), asked())
    with pytest.raises(InputError, match=words):
        calibrate(points, read_calibration())


def test_a_point_of_a_server_that_queues_is_refused(tmp_path: Path) -> None:
    point = {"users": 100_000, "ttft_seconds": 50}
    with pytest.raises(InputError, match="queue"):
        calibrate(read_measured(written(tmp_path, point), asked()), read_calibration())
