"""Batches of images: one order and one view of each, whoever decodes them and wherever they lie."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image
from tests.train.images.pictures import (
    as_arrays,
    as_folders,
    as_shards,
    digits,
    small_recipe,
)

from ridgeline.errors import InputError
from ridgeline.image_files.source import open_images
from ridgeline.records.layout import Layout
from ridgeline.train.batch import IGNORED
from ridgeline.train.images.batch import ImageBatch, blended
from ridgeline.train.images.feed import ImageFeed
from ridgeline.train.images.prepared import prepare_images, settled
from ridgeline.train.images.ring import DecodeRing
from ridgeline.train.ranks import Ranks, join, leave


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    yield join(Layout())
    leave()


@pytest.fixture(scope="module")
def arrays(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return as_arrays(tmp_path_factory.mktemp("arrays"), 100)


class _Place:
    """One data rank of several, without their processes."""

    def __init__(self, ranks: Ranks, index: int, size: int) -> None:
        self.device, self._index, self._size = ranks.device, index, size

    def index(self, _: str) -> int:
        return self._index

    def size(self, _: str) -> int:
        return self._size


def feed(tmp: Path, path: Path, ranks: Any, **tables: Any) -> ImageFeed:
    recipe = small_recipe(tmp, path, **tables)
    prepared = prepare_images(recipe)
    return ImageFeed(prepared, settled(recipe, prepared), ranks)


def steps(one: ImageFeed, count: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    try:
        found = [next(one) for _ in range(count)]
    finally:
        one.close()
    return [(torch.cat([b.pixels for b in s]), torch.cat([b.labels for b in s])) for s in found]


def same(one: Any, other: Any) -> bool:
    return all(
        torch.equal(a, b)
        for mine, theirs in zip(one, other, strict=True)
        for a, b in zip(mine, theirs, strict=True)
    )


@pytest.mark.slow
def test_workers_change_nothing_but_who_decodes(tmp_path: Path, arrays: Path, ranks: Ranks) -> None:
    alone = steps(feed(tmp_path, arrays, ranks), 9)
    for workers, ahead in ((1, 1), (3, 2)):
        images = {"workers": workers, "steps_ahead": ahead}
        assert same(steps(feed(tmp_path, arrays, ranks, images=images), 9), alone)


@settings(
    max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    taken=st.integers(0, 20),
    dp=st.sampled_from([1, 2, 4]),
    micro=st.sampled_from([1, 2, 4]),
    seed=st.integers(0, 3),
)
def test_a_resumed_feed_goes_on_whatever_the_ranks_and_micro_batches(
    tmp_path: Path, arrays: Path, ranks: Ranks, taken: int, dp: int, micro: int, seed: int
) -> None:
    run = {"seed": seed}
    straight = feed(tmp_path, arrays, ranks, run=run)
    wanted = steps(straight, taken + 2)[taken:]
    straight.load_state_dict(straight.state_dict() | {"samples": taken * 16})
    layout = {"dp": dp, "micro_batch": micro}
    parts = []
    for index in range(dp):
        resumed = feed(tmp_path, arrays, _Place(ranks, index, dp), run=run, layout=layout)
        resumed.load_state_dict(straight.state_dict())
        parts.append(steps(resumed, 2))
    together = [
        tuple(torch.cat([part[step][what] for part in parts]) for what in range(2))
        for step in range(2)
    ]
    assert same(together, wanted)


def test_an_epoch_has_each_image_once_and_the_next_sees_it_otherwise(
    tmp_path: Path, ranks: Ranks
) -> None:
    path = as_arrays(tmp_path / "arrays", 64)
    first, second = (
        steps(feed(tmp_path, path, ranks, images={"crop": "centre", "size": 8}), 8)[half]
        for half in (slice(0, 4), slice(4, 8))
    )
    rows = [sorted(torch.cat([p for p, _ in one]).flatten(1).tolist()) for one in (first, second)]
    assert rows[0] == rows[1]
    assert not same(first, second)


def test_folders_shards_and_arrays_give_the_same_images(tmp_path: Path, ranks: Ranks) -> None:
    forms = {
        "folders": as_folders(tmp_path / "folders", 40),
        "shards": as_shards(tmp_path / "shards", 40),
        "arrays": as_arrays(tmp_path / "arrays", 40),
    }
    seen = {}
    for name, path in forms.items():
        images = {"crop": "centre", "size": 8, "shuffle": False, "workers": 1}
        found = steps(feed(tmp_path, path, ranks, images=images, layout={"global_batch": 40}), 1)
        pixels, labels = found[0]
        rows = zip(pixels.flatten(1).tolist(), labels.tolist(), strict=True)
        seen[name] = sorted((label, row) for row, label in rows)
    assert seen["folders"] == seen["shards"] == seen["arrays"]
    assert [label for label, _ in seen["arrays"]] == sorted(digits(40)[1].tolist())


def test_an_image_that_cannot_be_read_is_named_counted_and_not_learnt_from(
    tmp_path: Path, ranks: Ranks
) -> None:
    path = as_folders(tmp_path / "folders", 32)
    bad = path / "3" / "00003.png"
    bad.write_bytes(bad.read_bytes()[:60])
    one = feed(tmp_path, path, ranks, images={"workers": 2}, layout={"global_batch": 32})
    (_, labels), *_ = steps(one, 1)
    assert one.targets == 31
    assert (labels == IGNORED).sum() == 1
    assert str(bad) in one.take_notes()
    assert one.take_notes() == ""
    assert one.figures()["unreadable_images"] == 1


def test_held_out_images_are_judged_once_each_and_never_trained_on(
    tmp_path: Path, arrays: Path, ranks: Ranks
) -> None:
    images = {"holdout": 4, "size": 8, "crop": "centre"}
    one = feed(tmp_path, arrays, ranks, images=images)
    held = [
        row for b in one.held_out() for row in b.pixels[b.labels != IGNORED].flatten(1).tolist()
    ]
    trained = {tuple(row) for p, _ in steps(one, 12) for row in p.flatten(1).tolist()}
    assert 10 < len(held) < 50
    assert not trained & {tuple(row) for row in held}
    shares = [
        list(feed(tmp_path, arrays, _Place(ranks, i, 2), images=images).held_out())
        for i in range(2)
    ]
    assert len(shares[0]) == len(shares[1])
    assert sum(b.count for share in shares for b in share) == len(held)


def test_other_images_are_no_continuation(tmp_path: Path, arrays: Path, ranks: Ranks) -> None:
    state = feed(tmp_path, arrays, ranks).state_dict()
    feed(tmp_path, arrays, ranks, images={"workers": 2}).load_state_dict(state)
    other = feed(tmp_path, arrays, ranks, images={"padding": 1})
    with pytest.raises(InputError, match="other images"):
        other.load_state_dict(state)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"classes": 3}, "images.classes is 3"),
        ({"holdout": 100000}, "leaves none for validation"),
        ({"path": "/nowhere/at/all"}, "/nowhere/at/all: no such"),
    ],
)
def test_data_that_does_not_fit_is_refused(
    tmp_path: Path, arrays: Path, change: Any, named: str
) -> None:
    with pytest.raises(InputError, match=named):
        prepare_images(small_recipe(tmp_path, arrays, images=change))


def test_tensors_that_are_no_images_are_named(tmp_path: Path) -> None:
    np.savez(tmp_path / "some.npz", crops=np.zeros((4, 8, 8, 3), np.uint8))
    with pytest.raises(InputError, match=r"holds crops, which are taken for .* wants pixels"):
        prepare_images(small_recipe(tmp_path, tmp_path / "some.npz"))


def test_validation_classes_are_matched_by_name(tmp_path: Path) -> None:
    for folder, names in (("train", "abc"), ("held", "cb")):
        for name in names:
            place = tmp_path / folder / name
            place.mkdir(parents=True)
            Image.fromarray(np.full((4, 4), ord(name), np.uint8)).save(place / "1.png")
    images = {"validation": str(tmp_path / "held")}
    held = prepare_images(small_recipe(tmp_path, tmp_path / "train", images=images)).held
    assert held is not None
    assert held.labels.tolist() == [1, 2]
    (tmp_path / "held" / "c").rename(tmp_path / "held" / "z")
    with pytest.raises(InputError, match="its class z is none"):
        prepare_images(small_recipe(tmp_path, tmp_path / "train", images=images))


def _numbered(step: int, row: int) -> Any:
    return np.full((2,), (step * 10 + row) % 256, np.uint8)


@pytest.mark.slow
@settings(max_examples=10, deadline=None)
@given(
    workers=st.integers(0, 3),
    rows=st.integers(1, 9),
    ahead=st.integers(1, 4),
    first=st.integers(0, 50),
)
def test_a_ring_gives_every_row_of_every_step_in_order(
    workers: int, rows: int, ahead: int, first: int
) -> None:
    ring = DecodeRing(_numbered, rows, (2,), workers, ahead, step=first, last=first + 6)
    try:
        for step, found in enumerate(ring, start=first):
            assert found.pixels[:, 0].tolist() == [(step * 10 + r) % 256 for r in range(rows)]
    finally:
        ring.close()
    assert ring.step == first + 6


def test_a_worker_that_is_killed_ends_the_step_with_its_signal() -> None:
    def dies(step: int, row: int) -> Any:
        if step == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        return _numbered(step, row)

    ring = DecodeRing(dies, 4, (2,), 2, 1, last=9)
    try:
        with pytest.raises(RuntimeError, match=r"ended with -9"):
            list(ring)
    finally:
        ring.close()


@pytest.mark.slow
def test_workers_end_when_their_parent_is_killed(tmp_path: Path) -> None:
    def names_itself(step: int, row: int) -> Any:
        (tmp_path / str(os.getpid())).touch()
        return _numbered(step, row)

    child = os.fork()
    if child == 0:
        next(DecodeRing(names_itself, 16, (2,), 2, 1))
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    workers = [int(path.name) for path in tmp_path.iterdir()]
    assert workers
    deadline = time.monotonic() + 5
    while any(_lives(worker) for worker in workers):
        assert time.monotonic() < deadline, "workers outlive their parent"
        time.sleep(0.1)


def _lives(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


@pytest.mark.parametrize("kind", ["mixup", "cutmix"])
def test_blended_images_have_their_labels_in_the_shares_of_their_pixels(
    tmp_path: Path, arrays: Path, kind: str
) -> None:
    recipe = small_recipe(tmp_path, arrays, images={kind: 1.0})
    assert recipe.images is not None
    pixels = torch.arange(4.0).reshape(4, 1, 1, 1).expand(4, 1, 12, 12).clone()
    batch = ImageBatch(pixels=pixels, labels=torch.arange(4), count=4)
    drawn = [blended(batch, recipe.images, 0, first) for first in range(8)]
    again = [blended(batch, recipe.images, 0, first) for first in range(8)]
    for one, twin in zip(drawn, again, strict=True):
        assert torch.equal(one.pixels, twin.pixels)
        assert one.partners is not None
        means = one.pixels.mean((1, 2, 3))
        expected = one.share * one.labels + (1 - one.share) * one.partners
        torch.testing.assert_close(means, expected.float())
    assert len({one.share for one in drawn}) > 1


def test_the_same_source_is_read_as_it_was_written(arrays: Path) -> None:
    source = open_images("images.path", arrays)
    pixels, _ = digits(100)
    assert np.array_equal(source.read(7)[:, :, 0], pixels[7])
