"""Drills in the studio: asked, answered by form, graded, remembered where the terminal does."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlencode

import pytest
from starlette.testclient import TestClient

from ridgeline.drills.bank import question_of, topics
from ridgeline.drills.grading import right_answer
from ridgeline.drills.history import DrillHistory
from ridgeline.studio.app import create_app
from ridgeline.studio.files import NO_FILES
from ridgeline.studio.guard import Door

ONE = "zero-states:7"


@pytest.fixture
def studio(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TestClient]:
    monkeypatch.setenv("RIDGELINE_STATE", str(tmp_path))
    with TestClient(
        create_app(NO_FILES, Door("127.0.0.1")),
        base_url="http://127.0.0.1",
        raise_server_exceptions=False,
    ) as client:
        yield client


def sent(studio: TestClient, **fields: str) -> str:
    answer = studio.post(
        "/drills/grade",
        content=urlencode(fields),
        headers={"content-type": "application/x-www-form-urlencoded"},
    )
    assert answer.status_code == 200, answer.text
    return answer.text


@pytest.mark.sweep(every=6)
@pytest.mark.parametrize("topic", list(topics()))
def test_every_topic_asks_and_grades(studio: TestClient, topic: str) -> None:
    page = studio.get("/drills/ask", params={"topic": topic}).text
    identity = re.search(r'name="id" value="([^"]+)"', page)[1]  # type: ignore[index]
    asked = re.search(r'name="asked" value="([^"]+)"', page)[1]  # type: ignore[index]
    solved = question_of(identity)
    assert solved.question.topic == topic
    answers = {
        f"answer{place}": right_answer(ask, right).partition(")")[0]
        for place, (ask, right) in enumerate(zip(solved.question.asks, solved.right, strict=True))
    }
    graded = sent(studio, id=identity, asked=asked, **answers)
    assert "100 % of the points" in graded
    assert [one.score for one in DrillHistory().read().attempts] == [1.0]
    assert "Sessions" in studio.get("/drills").text


def test_a_late_answer_and_a_wrong_one(studio: TestClient) -> None:
    solved = question_of(ONE)
    right = right_answer(solved.question.asks[0], solved.right[0])
    assert "50 % of the points" in sent(studio, id=ONE, asked="0", answer0=right)
    again = studio.get("/drills/graded", params={"id": ONE, "answer0": "1 GB", "seconds": "3"})
    assert "0 % of the points in 3.00 s" in again.text
    assert "ridgeline calc zero" in again.text
    assert len(DrillHistory().read().attempts) == 1  # looking again is no answer


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("/drills/ask?id=../../etc/passwd:1", "no question"),
        ("/drills/ask?id=zero-states:NaN", "is no seed"),
        ("/drills/ask?topic=<script>alert(1)</script>", "no topic"),
        ("/drills/graded?id=zero-states:7&seconds=1e999", "give a number"),
        ("/drills/graded", "no question"),
    ],
)
def test_a_hostile_address_is_one_message(studio: TestClient, path: str, said: str) -> None:
    answer = studio.get(path)
    assert answer.status_code == 400
    assert said in answer.text
    assert "<script>alert" not in answer.text


def test_a_hostile_answer_is_graded_as_text(studio: TestClient) -> None:
    page = sent(studio, id=ONE, asked="0", answer0="<script>alert(1)</script>")
    assert "is no number" in page
    assert "<script>alert" not in page
    too_long = studio.post("/drills/grade", content=b"id=" + b"x" * 5000)
    assert too_long.status_code == 400
    strange = studio.post("/drills/grade", content=b"\xff\xfe")
    assert strange.status_code == 400
    other = studio.post("/drills/grade", content=b"", headers={"origin": "http://evil.example"})
    assert other.status_code == 403
