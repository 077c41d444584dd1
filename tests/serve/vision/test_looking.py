"""Images that wait for the tower: what running answers, other requests and memory notice of it."""

from __future__ import annotations

import pytest
import torch
from tests.serve.vision.test_families import PICTURES, answers, submit
from tests.serve.vision.tiny_seers import save

from ridgeline.serve.config import EngineConfig
from ridgeline.serve.engine import looking
from ridgeline.serve.engine.engine import ServingEngine
from ridgeline.serve.messages import Abort, Delta, Refused, Sampling, Submit
from ridgeline.serve.vision.features import ImageFeatures


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(save("llava", tmp_path_factory.mktemp("seer")))


@pytest.fixture(scope="module")
def engine(folder: str) -> ServingEngine:
    return ServingEngine(EngineConfig(model=folder, dtype="fp32", kv_bytes=1 << 22, debug=True))


def test_an_answer_goes_on_while_the_images_of_others_are_looked_at(
    engine: ServingEngine, folder: str
) -> None:
    sampling = Sampling(temperature=0.0, max_tokens=8, ignore_eos=True)
    engine.handle(Submit(id="text", prompt=(5, 6, 7), sampling=sampling))
    engine.handle(submit(engine, folder, "seen", *PICTURES))
    heard: list[list[str]] = []
    for _ in PICTURES:
        engine.step()
        heard.append([one.id for one in engine.take() if isinstance(one, Delta)])
    assert heard[:-1] == [["text"]] * (len(PICTURES) - 1)
    engine.handle(Abort(id="text"))
    engine.handle(Abort(id="seen"))
    assert not engine.has_work


def test_a_request_that_is_withdrawn_is_not_looked_at(engine: ServingEngine, folder: str) -> None:
    engine.handle(submit(engine, folder, "gone", PICTURES[0]))
    assert engine.has_work
    engine.handle(Abort(id="gone"))
    assert not engine.has_work
    engine.handle(submit(engine, folder, "gone", PICTURES[0]))
    engine.handle(submit(engine, folder, "gone", PICTURES[0]))
    (twice,) = [one for one in engine.take() if isinstance(one, Refused)]
    assert "running already" in twice.message
    engine.handle(Abort(id="gone"))


def test_images_beyond_the_room_wait_outside(
    engine: ServingEngine, folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(looking, "MOST_WAITING_BYTES", 20_000)
    for name in ("first", "second"):  # 12,288 bytes of pixels each
        engine.handle(submit(engine, folder, name, PICTURES[0]))
    (refused,) = engine.take()
    assert isinstance(refused, Refused)
    assert (refused.id, refused.status) == ("second", 429)
    engine.handle(Abort(id="first"))


def test_features_held_by_open_requests_are_bounded(
    engine: ServingEngine, folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(looking, "MOST_HELD_BYTES", 1000)
    engine.handle(submit(engine, folder, "open", PICTURES[0]))  # 16 features of 128 bytes
    engine.step()
    engine.take()
    engine.handle(submit(engine, folder, "more", PICTURES[1]))
    (refused,) = engine.take()
    assert isinstance(refused, Refused)
    assert (refused.id, refused.status) == ("more", 429)
    engine.handle(Abort(id="open"))
    engine.take()
    assert answers(engine, [submit(engine, folder, "more", PICTURES[1])])["more"]


def test_an_image_that_fails_ends_its_request_alone(engine: ServingEngine, folder: str) -> None:
    (image,) = (whole := submit(engine, folder, "bad", PICTURES[3])).images
    broken = type(image)(places=image.places[:-1], digest=b"another", arrays=image.arrays)
    engine.handle(Submit(id="bad", prompt=whole.prompt, sampling=whole.sampling, images=(broken,)))
    engine.handle(submit(engine, folder, "good", PICTURES[0]))
    found: list[Delta | Refused] = []
    while engine.has_work:
        engine.step()
        found += [one for one in engine.take() if isinstance(one, Delta | Refused)]
    assert [one.id for one in found if isinstance(one, Refused)] == ["bad"]
    assert {one.id for one in found if isinstance(one, Delta)} == {"good"}


def test_the_features_used_longest_ago_are_forgotten(engine: ServingEngine, folder: str) -> None:
    tower = engine.model.tower
    assert tower is not None
    one, two, three = (submit(engine, folder, "x", each).images[0] for each in PICTURES[:3])
    features = ImageFeatures(tower, most_bytes=2 * 16 * 32 * 4)
    kept = features.placed(one).features
    features.placed(two)
    assert torch.equal(features.placed(one).features, kept)
    features.placed(three)
    assert [each.digest in features for each in (one, two, three)] == [True, False, True]
