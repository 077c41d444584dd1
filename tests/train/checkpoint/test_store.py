"""A checkpoint exists wholly or not at all, and what is not as it was written is found out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.train.checkpoint.recipes import small_run

from ridgeline.errors import InputError
from ridgeline.train.checkpoint.same_run import check_same_run
from ridgeline.train.checkpoint.store import (
    Checkpoint,
    Damaged,
    Manifest,
    Store,
    sum_of,
    verify,
)


def _save(store: Store, step: int, number: int = 0, recipe: dict[str, Any] | None = None) -> Path:
    store.begin(step)
    place = store.place(step)
    (place / "a.distcp").write_bytes(bytes(range(256)) * 40)
    (place / "b.distcp").write_bytes(b"second")
    files = {name: sum_of(place / name) for name in ("a.distcp", "b.distcp")}
    manifest = Manifest(
        step=step,
        tokens=step * 10,
        number=number,
        world=1,
        time=0.0,
        recipe=recipe or {},
        files=files,
    )
    return store.seal(place, manifest).path


def test_what_is_being_written_is_not_found_and_what_is_sealed_is(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.begin(5)
    (store.place(5) / "a.distcp").write_bytes(b"half")
    assert store.whole() == []
    _save(store, 3)
    assert [one.step for one in store.whole()] == [3]
    assert store.sweep() == [".writing-00000005"]
    assert not store.place(5).exists()
    verify(store.whole()[0])


def test_the_newest_come_first_and_retention_keeps_them_and_every_nth(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for number in range(9):
        _save(store, 10 * number, number)
    store.retain(2, 4)
    assert [one.step for one in store.whole()] == [80, 70, 40, 0]


def test_a_step_that_is_saved_again_replaces_the_first(tmp_path: Path) -> None:
    store = Store(tmp_path)
    _save(store, 7, 1)
    _save(store, 7, 2)
    (found,) = store.whole()
    assert found.manifest.number == 2
    assert store.sweep() == []


@settings(max_examples=60, deadline=None)
@given(name=st.sampled_from(["a.distcp", "b.distcp", "manifest.json"]), data=st.data())
def test_any_changed_or_missing_byte_of_any_file_is_found_out(
    tmp_path_factory: pytest.TempPathFactory, name: str, data: st.DataObject
) -> None:
    store = Store(tmp_path_factory.mktemp("store"))
    path = _save(store, 4) / name
    content = bytearray(path.read_bytes())
    place = data.draw(st.integers(0, len(content) - 1))
    if data.draw(st.booleans()):
        content[place] ^= data.draw(st.integers(1, 255))
    else:
        del content[place:]
    path.write_bytes(content)
    (found,) = store.found()
    if isinstance(found, Checkpoint):
        if name == "manifest.json" and json.loads(bytes(content)) == msgspec.to_builtins(
            found.manifest
        ):
            return  # white space between the values
        with pytest.raises(Damaged, match=name):
            verify(found)
    else:
        assert name in str(found)
        assert "\n" not in str(found)


def test_a_file_that_another_machine_wrote_elsewhere_is_no_checkpoint(tmp_path: Path) -> None:
    store = Store(tmp_path)
    whole = _save(store, 1)
    manifest = store.whole()[0].manifest
    (whole / "b.distcp").unlink()
    (found,) = store.found()
    assert isinstance(found, Damaged)
    assert "a disk that all machines share" in str(found)
    store.begin(2)
    with pytest.raises(Damaged, match=r"a\.distcp is not there"):
        store.seal(store.place(2), manifest)


def test_what_is_set_aside_is_no_longer_found(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.set_aside(_save(store, 6))
    assert list(store.found()) == []
    assert (store.folder / "damaged-00000006").exists()


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"optimizer": {"learning_rate": 1.0}}, "optimizer.learning_rate was 0.003"),
        ({"data": {"seq": 64}}, "data.seq"),
        ({"run": {"seed": 4}}, "run.seed"),
        ({"layout": {"global_batch": 8}}, "layout.global_batch"),
        ({"adapter": {"rank": 2}}, "adapter"),
        ({"communication": {"compression": "int8"}}, "communication.compression"),
    ],
)
def test_a_recipe_of_another_course_is_one_line_with_the_cure(
    tmp_path: Path, change: dict[str, Any], named: str
) -> None:
    store = Store(tmp_path)
    _save(store, 1, recipe=msgspec.to_builtins(small_run(tmp_path)))
    with pytest.raises(InputError, match=named) as error:
        check_same_run(store.whole()[0], small_run(tmp_path, **change))
    assert "--fresh" in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "change",
    [
        {"layout": {"dp": 2, "fsdp": 2, "zero": 3, "micro_batch": 2}},
        {"run": {"steps": 100, "log_every": 7}},
        {"data": {"workers": 3}},
        {"checkpoint": {"keep": 5, "every_steps": 3}},
        {"survive": {"allow_shrink": True}},
    ],
)
def test_layout_length_and_log_may_change(tmp_path: Path, change: dict[str, Any]) -> None:
    store = Store(tmp_path)
    _save(store, 1, recipe=msgspec.to_builtins(small_run(tmp_path)))
    check_same_run(store.whole()[0], small_run(tmp_path, **change))
