"""A revision of a hub id, from the folder in which the hub's client keeps what it has fetched."""

from __future__ import annotations

from pathlib import Path

import pytest
from huggingface_hub import constants

from ridgeline.checkpoints.revision import snapshot_folder
from ridgeline.errors import InputError


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache with two commits of one model, and no network."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    model = tmp_path / "models--me--tiny"
    for name, commit in (("main", "a" * 40), ("v1", "b" * 40)):
        (model / "refs").mkdir(parents=True, exist_ok=True)
        (model / "refs" / name).write_text(commit)
        folder = model / "snapshots" / commit
        folder.mkdir(parents=True)
        (folder / "config.json").write_text(f'{{"revision": "{name}"}}')
    return model


@pytest.mark.parametrize("revision", ["v1", "b" * 40])
def test_a_tag_and_its_commit_are_the_same_folder(hub: Path, revision: str) -> None:
    assert Path(snapshot_folder("me/tiny", revision)) == hub / "snapshots" / ("b" * 40)


@pytest.mark.usefixtures("hub")
def test_an_unknown_revision_is_one_line() -> None:
    with pytest.raises(InputError, match=r"me/tiny: no such directory; .*--revision v9") as found:
        snapshot_folder("me/tiny", "v9")
    assert "\n" not in str(found.value)
