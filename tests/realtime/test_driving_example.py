"""The driving example sees, tracks and plans, and its two pipelines give the same results."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ridgeline.realtime.pipeline import Pipeline, read_pipeline
from ridgeline.realtime.recording import record, replay

EXAMPLE = Path(__file__).parents[2] / "examples/realtime"


@pytest.fixture(autouse=True)
def _beside_the_example(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLE))


def read_with_frames(monkeypatch: pytest.MonkeyPatch, script: str, frames: int) -> Pipeline:
    """One of the example's pipelines, on a drive of so many frames."""
    import driving.drive

    monkeypatch.setattr(driving.drive, "NUM_FRAMES", frames)
    return read_pipeline(str(EXAMPLE / script))


def plans_of(pipeline: Pipeline, frames: int) -> list[tuple[int, Any]]:
    return replay(pipeline, record(pipeline, frames), range(frames)).results["plan"]


def test_an_assignment_is_the_cheapest_of_all() -> None:
    from driving.assignment import assign

    generator = np.random.default_rng(0)
    for rows, columns in itertools.product(range(1, 6), range(1, 6)):
        costs = generator.integers(0, 9, (rows, columns)).astype(float)
        chosen, others = assign(costs)
        assert len(set(chosen)) == len(set(others)) == min(rows, columns)
        tall = costs if rows <= columns else costs.T
        every = itertools.permutations(range(tall.shape[1]), len(tall))
        cheapest = min(tall[range(len(tall)), list(one)].sum() for one in every)
        assert costs[chosen, others].sum() == cheapest


def test_a_pixel_of_a_vehicle_lies_on_its_box() -> None:
    from driving.cameras import MOUNT_HEIGHT
    from driving.render import Renderer
    from driving.world import make_scene, rotate

    scene, renderer = make_scene(3), Renderer()
    empty = renderer.draw(_without_vehicles(scene), 0.4)[1]
    _, depth, seen = renderer.draw(scene, 0.4)
    of_vehicles = depth < empty
    points = (depth[..., None] * renderer.rays)[of_vehicles] + (0, 0, MOUNT_HEIGHT)
    inside = np.zeros(len(points), dtype=bool)
    for box in scene.boxes(0.4):
        away = np.abs(rotate(points[:, :2] - box[:2], -box[2]))
        inside |= (away <= box[3:5] / 2 + 1e-3).all(axis=1) & (points[:, 2] <= box[5] + 1e-3)
    assert of_vehicles.sum() == seen.sum() > 1000
    assert inside.all()


def _without_vehicles(scene: Any) -> Any:
    import dataclasses

    return dataclasses.replace(scene, vehicles=())


def test_a_drive_comes_back_to_its_beginning_without_a_seam() -> None:
    from driving.drive import odometry_at
    from driving.world import PERIOD, make_scene

    scene = make_scene(5)
    np.testing.assert_allclose(scene.boxes(0.0), scene.boxes(PERIOD), atol=1e-9)
    before, after = odometry_at(scene, 2 * PERIOD - 1e-6), odometry_at(scene, 2 * PERIOD)
    np.testing.assert_allclose(before, after, atol=1e-3)


def test_a_parked_car_stands_still_for_the_tracker_though_the_ego_car_turns() -> None:
    from driving.tracking import Tracker
    from driving.world import rotate

    tracker, parked, listed = Tracker(), np.array([30.0, 4.0]), []
    for frame in range(40):
        seconds = frame / 30
        pose = np.array([12 * seconds, 0.5 * seconds, 0.2 * seconds])
        place = rotate(parked - pose[:2], -pose[2])
        missed = frame % 7 == 6
        detections = np.array([[*place, 4.4, 1.8, 0.9]] * (not missed)).reshape(-1, 5)
        listed.append(tracker(detections, np.array([seconds, *pose, 12.0, 0.2]))["tracks"])
    assert {track[0] for tracks in listed for track in tracks} == {1}
    assert np.linalg.norm(listed[-1][0, 3:5]) < 0.1
    np.testing.assert_allclose(listed[-1][0, 1:3], place, atol=0.1)


def test_a_recording_that_begins_again_leaves_no_tracks_behind() -> None:
    from driving.tracking import Tracker

    tracker, listed = Tracker(), []
    for lap in range(3):
        for frame in range(10):
            detections = np.array([[10.0 + lap, 2.0 + frame / 30, 4.4, 1.8, 0.9]])
            odometry = np.array([frame / 30, 0.0, 0.0, 0.0, 0.0, 0.0])
            listed.append(len(tracker(detections, odometry)["tracks"]))
    assert listed == [0, 0, *[1] * 8] * 3


def test_the_planner_brakes_for_what_stands_on_its_way_and_for_nothing_else() -> None:
    from driving.planning import plan
    from driving.prediction import predict

    road = np.zeros((64, 32))
    road[:, 12:20] = 1.0
    aside = np.array([0, 0, 9.0, 0, 0, 0, 0, 0])
    standing = np.array([[1, 14.0, 0.0, 0.0, 0.0, 4.4, 3.0, 9]])
    chosen = [
        plan(predict({"tracks": tracks, "speed": 10.0}, road), road, np.array([10.0]))["path"]
        for tracks in (standing, standing[:0], standing + aside)
    ]
    assert chosen[0][-1, 2] < 5 < chosen[1][-1, 2]
    assert chosen[0][-1, 0] < 14 - 4.4 / 2
    np.testing.assert_array_equal(chosen[1], chosen[2])
    assert np.abs(chosen[1][:, 1]).max() < 0.2


def test_steps_done_at_once_give_what_they_give_one_after_the_other() -> None:
    from driving.at_once import BirdsEyeViewAtOnce, preprocess_at_once
    from driving.sight import preprocess
    from driving.weights import load_view

    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (6, 144, 352, 3), generator=generator).byte().numpy()
    torch.testing.assert_close(preprocess_at_once(images), preprocess(images))
    features = [torch.randn(6, 64, 8, 22, generator=generator) for _ in range(3)]
    view = load_view()
    with torch.inference_mode():
        torch.testing.assert_close(
            BirdsEyeViewAtOnce(view)(*features), view(*features), rtol=1e-3, atol=1e-4
        )


@pytest.mark.slow
def test_the_pipeline_rewritten_by_hand_plans_what_the_baseline_plans(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = plans_of(read_with_frames(monkeypatch, "baseline.py", 5), 5)
    after = plans_of(read_with_frames(monkeypatch, "by_hand.py", 5), 5)
    assert [frame for frame, _ in before] == [frame for frame, _ in after] == list(range(5))
    assert len(before[-1][1]["tracks"]) >= 2
    for (_, one), (_, other) in zip(before, after, strict=True):
        for name in ("path", "tracks", "road"):
            np.testing.assert_allclose(other[name], one[name], atol=2e-3)


@pytest.mark.slow
def test_the_example_sees_a_drive_that_it_was_not_trained_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from driving.quality import judge

    pipeline = read_with_frames(monkeypatch, "by_hand.py", 24)
    drive = pipeline.readers["cameras"].__self__
    found = judge(drive, plans_of(pipeline, 24)[6:])
    assert found["recall"] > 0.75
    assert found["precision"] > 0.8
    assert found["place"] > 0.3
    assert found["same track"] > 0.95
    assert found["road IoU"] > 0.85
    assert found["safe"] > 0.9
