"""Pipelines as users write them in Python, and read from scripts."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from ridgeline import Pipeline, read_pipeline
from ridgeline.errors import InputError, in_words
from ridgeline.realtime.pipeline import StageCode

SCRIPT = """
from ridgeline.realtime import Pipeline

def build(name="car", deadline="33ms"):
    pipeline = Pipeline(name, deadline=deadline)
    camera = pipeline.sensor("camera", lambda frame: frame, rate="30Hz")
    radar = pipeline.sensor("radar", iter([1, 2]), rate=10)
    boxes = pipeline.stage("detect", lambda image: image, camera, budget="15ms")
    plan = pipeline.stage(
        "plan", lambda *found: found, boxes, radar.via("latest-only", reuse=True),
        on_miss="degrade", cheaper=lambda *found: None, tolerance="10ms", processor="gpu",
    )
    pipeline.path(radar, plan, budget="150ms")
    return pipeline

car = build()
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "car_pipeline.py"
    path.write_text(SCRIPT)
    return path


def test_a_pipeline_in_python_has_the_shape_that_it_says(script: Path) -> None:
    shape = read_pipeline(str(script)).shape
    assert json.loads(msgspec.json.encode(shape)) == {
        "name": "car",
        "deadline_seconds": 0.033,
        "sensors": [{"name": "camera", "rate_hz": 30.0}, {"name": "radar", "rate_hz": 10.0}],
        "stages": [
            {
                "name": "detect",
                "inputs": [{"source": "camera", "policy": "block", "depth": 2, "reuse": False}],
                "budget_seconds": 0.015,
                "on_miss": "finish",
                "tolerance_seconds": 0.0,
                "processor": "cpu",
            },
            {
                "name": "plan",
                "inputs": [
                    {"source": "detect", "policy": "block", "depth": 2, "reuse": False},
                    {"source": "radar", "policy": "latest-only", "depth": 2, "reuse": True},
                ],
                "budget_seconds": None,
                "on_miss": "degrade",
                "tolerance_seconds": 0.01,
                "processor": "gpu",
            },
        ],
        "paths": [{"sensor": "radar", "stage": "plan", "budget_seconds": 0.15}],
        "processors": {},
    }


def test_the_pipeline_of_a_script_is_found_by_name_or_by_being_the_only_one(script: Path) -> None:
    assert read_pipeline(str(script)).name == "car"
    assert read_pipeline(f"{script}:car").name == "car"
    assert read_pipeline(f"{script}:build").name == "car"


@pytest.mark.parametrize(
    ("added", "name", "message"),
    [
        ("van = build('van')", "", "has 2 pipelines (car, van); write car_pipeline.py:NAME"),
        ("del car", "", "has no pipeline; write car_pipeline.py:NAME, of a Pipeline or of a func"),
        ("", ":truck", "car_pipeline.py defines no 'truck' (car)"),
        ("x = 3", ":x", "gives a int, no Pipeline (car)"),
        ("def bad():\n    return 3", ":bad", "gives a int, no Pipeline"),
        ("def bad():\n    raise KeyError('key')", ":bad", "bad() fails with 'key' (KeyError)"),
        ("raise RuntimeError('no camera')", "", "no camera"),
    ],
)
def test_a_script_without_the_pipeline_is_refused_in_one_line(
    script: Path, added: str, name: str, message: str
) -> None:
    script.write_text(SCRIPT + added)
    with pytest.raises(InputError) as error:
        read_pipeline(f"{script}{name}")
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("path", ["nowhere.py", "pipeline.txt", ""])
def test_what_is_no_script_is_refused(path: str) -> None:
    with pytest.raises(InputError, match=r"no such file|is no Python script"):
        read_pipeline(path)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"budget": "15 parsecs"}, "stage plan: budget: '15 parsecs' is no duration"),
        ({"on_miss": "degrade"}, "stage plan: on_miss='degrade' and cheaper=… come together"),
        ({"cheaper": print}, "stage plan: on_miss='degrade' and cheaper=… come together"),
        ({"on_miss": "panic"}, "stage plan: on_miss 'panic' is none of finish, drop, skip"),
        ({"name": "camera"}, "stage camera: 'camera' names a sensor or stage already"),
        ({"call": None}, "stage plan: a NoneType cannot be called"),
        ({"inputs": ["camera"]}, "stage plan: a str is no input; give what sensor() or stage()"),
    ],
)
def test_a_stage_that_cannot_be_is_refused_where_it_is_written(
    arguments: dict[str, object], message: str
) -> None:
    pipeline = Pipeline("car", deadline=0.033)
    camera = pipeline.sensor("camera", lambda frame: frame)
    given = {"name": "plan", "call": print, "inputs": [camera], **arguments}
    name, call, inputs = given.pop("name"), given.pop("call"), given.pop("inputs")
    with pytest.raises(InputError) as error:
        pipeline.stage(name, call, *inputs, **given)  # type: ignore[arg-type, misc]
    assert str(error.value).startswith(f"pipeline car: {message}")


def test_a_wrong_policy_rate_or_deadline_is_refused() -> None:
    pipeline = Pipeline("car")
    with pytest.raises(InputError, match="sensor camera: rate: 'often' is no rate"):
        pipeline.sensor("camera", print, rate="often")
    with pytest.raises(InputError, match="sensor camera: a int can be neither called nor iterated"):
        pipeline.sensor("camera", 3)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="pipeline van: deadline: 'soon' is no duration"):
        Pipeline("van", deadline="soon")
    camera = pipeline.sensor("camera", print)
    with pytest.raises(InputError, match="camera: policy 'newest' is none of block, drop-oldest"):
        camera.via("newest")  # type: ignore[arg-type]


def test_a_sensor_that_is_iterated_ends_with_its_rows() -> None:
    pipeline = Pipeline("car")
    pipeline.stage("detect", print, pipeline.sensor("camera", ["a", "b"]))
    read = pipeline.readers["camera"]
    assert [read(0), read(1)] == ["a", "b"]
    with pytest.raises(StopIteration):
        read(2)


def test_a_changed_pipeline_leaves_the_one_it_came_from(script: Path) -> None:
    before = read_pipeline(str(script))
    shape = msgspec.structs.replace(before.shape, name="changed", deadline_seconds=0.05)
    after = before.changed(shape, {"detect": StageCode(call=str)})
    assert (before.shape.name, after.shape.name) == ("car", "changed")
    assert before.code["detect"].call is not str
    assert after.code["detect"].call is str
    assert after.code["plan"] == before.code["plan"]
    assert after.readers == before.readers


async def _awaited(image: object) -> object:
    return image


def _yielded(image: object) -> Iterator[object]:
    yield image


class _Awaited:
    async def __call__(self, image: object) -> object:
        return image


@pytest.mark.parametrize(
    ("call", "says"), [(_awaited, "it is async"), (_yielded, "it yields"), (_Awaited(), "is async")]
)
def test_a_stage_whose_work_would_be_done_by_somebody_else_is_refused(
    call: Callable[..., object], says: str
) -> None:
    pipeline = Pipeline("car", deadline="33ms")
    camera = pipeline.sensor("camera", lambda frame: frame, rate="30Hz")
    with pytest.raises(InputError, match=f"stage detect: .*{says}"):
        pipeline.stage("detect", call, camera)
    with pytest.raises(InputError, match=f"stage detect: .*{says}"):
        pipeline.stage("detect", abs, camera, on_miss="degrade", cheaper=call)


def test_an_error_that_cannot_say_what_it_is_has_the_name_of_its_class() -> None:
    class BrokenError(Exception):
        def __str__(self) -> str:
            raise ValueError("no text")

    assert in_words(BrokenError()) == "BrokenError"
