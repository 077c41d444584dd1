"""Images behind an address are those of the local folder: fetched once, checked, gone on with."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.train.data.test_remote import Server
from tests.train.images.pictures import as_folders, as_shards, small_recipe
from tests.train.images.test_feed import feed, same, steps

from ridgeline.errors import InputError, RidgelineError
from ridgeline.records.layout import Layout
from ridgeline.train.data import remote
from ridgeline.train.images.prepared import prepare_images
from ridgeline.train.ranks import Ranks, join, leave

PLAIN = {"crop": "centre", "size": 8}


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    yield join(Layout())
    leave()


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setattr(remote, "FIRST_WAIT_SECONDS", 0.0)
    (tmp_path / "served" / "prepared").mkdir(parents=True)
    made = Server(tmp_path / "served")
    yield made
    made.close()


def _summed(folder: Path) -> None:
    lines = [
        f"{hashlib.sha256(path.read_bytes()).hexdigest()}  ./{path.relative_to(folder).as_posix()}"
        for path in sorted(folder.rglob("*.*"))
    ]
    (folder / "SHA256SUMS").write_text("\n".join(lines) + "\n")


def _from(tmp: Path, path: object, cache: str, **tables: Any) -> Any:
    images = PLAIN | {"cache": str(tmp / cache)} | tables.pop("images", {})
    return {"images": images, **tables}


def test_folders_come_as_they_are_seen_and_a_run_goes_on_with_an_empty_cache(
    tmp_path: Path, server: Server, ranks: Ranks
) -> None:
    folder = as_folders(tmp_path / "served" / "prepared", 48)
    _summed(folder)
    expected = steps(feed(tmp_path, folder, ranks, images=PLAIN), 4)
    url: Any = server.url
    one = feed(tmp_path, url, ranks, **_from(tmp_path, url, "one"))
    assert [name for name in server.asked if name.endswith(".png")] == []
    first = [next(one) for _ in range(1)]
    state = one.state_dict()
    one.close()
    assert len(first) > 0
    assert len({name for name in server.asked if name.endswith(".png")}) == 16
    again = feed(tmp_path, url, ranks, **_from(tmp_path, url, "two", images={"workers": 2}))
    again.load_state_dict(state)
    assert same(steps(again, 3), expected[1:])
    asked = len(server.asked)
    kept = feed(tmp_path, url, ranks, **_from(tmp_path, url, "two"))
    kept.load_state_dict(state)
    assert same(steps(kept, 1), expected[1:2])
    assert len(server.asked) == asked


def test_shards_are_fetched_once_and_are_those_of_the_local_folder(
    tmp_path: Path, server: Server, ranks: Ranks
) -> None:
    folder = tmp_path / "served" / "prepared"
    local = as_shards(folder, 48)
    expected = steps(feed(tmp_path, local, ranks, images=PLAIN), 3)
    ranged: Any = f"{server.url}/{local.name}"
    straight = feed(tmp_path, local, ranks, images=PLAIN)
    found = feed(tmp_path, ranged, ranks, **_from(tmp_path, ranged, "range"))
    found.load_state_dict(straight.state_dict())  # of the same images, wherever they lie
    assert same(steps(found, 3), expected)
    _summed(folder)
    url: Any = server.url
    listed = feed(tmp_path, url, ranks, **_from(tmp_path, url, "listed"))
    assert same(steps(listed, 3), expected)
    assert server.asked.count("shard-000.tar") == 2


def test_what_came_damaged_or_not_at_all_is_one_line(
    tmp_path: Path, server: Server, ranks: Ranks
) -> None:
    folder = as_folders(tmp_path / "served" / "prepared", 32)
    url: Any = server.url

    def opened(cache: str) -> Any:
        recipe = small_recipe(tmp_path, url, **_from(tmp_path, url, cache))
        return prepare_images(recipe).train.source

    with pytest.raises(InputError, match=r"images\.path: http.* has no SHA256SUMS"):
        opened("none")
    _summed(folder)
    source = opened("some")
    (folder / "0" / "00000.png").write_bytes(b"else")
    with pytest.raises(RidgelineError, match="is not what SHA256SUMS says") as caught:
        source.read(0)
    assert not isinstance(caught.value, InputError), "it would be passed over as a bad picture"
    (folder / "0" / "00000.png").unlink()
    with pytest.raises(RidgelineError, match=r"has no 0/00000\.png; SHA256SUMS lists it"):
        source.read(0)
    (folder / "SHA256SUMS").write_text(f"{'0' * 64}  ../../outside.png\n")
    with pytest.raises(InputError, match="line 1 is none of sha256sum's with a path below it"):
        opened("outside")
    store: Any = "oss://bucket/train-{000..001}.tar"  # a library that is not installed
    with pytest.raises(InputError, match=r"images\.path: oss://bucket.* ossfs.*presigned one$"):
        prepare_images(small_recipe(tmp_path, store, **_from(tmp_path, store, "store")))
