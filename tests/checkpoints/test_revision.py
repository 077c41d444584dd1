"""Models of the hub, from the folder in which its client keeps what it has fetched."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants
from tests.serve.engine.workloads import write_tiny_llama

from ridgeline.checkpoints.revision import local_folder
from ridgeline.cli.main import run
from ridgeline.errors import InputError
from ridgeline.kernels import linear_int8
from ridgeline.serve.packed import entries


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
    assert Path(local_folder("me/tiny", revision)) == hub / "snapshots" / ("b" * 40)


@pytest.mark.usefixtures("hub")
def test_an_unknown_revision_is_one_line() -> None:
    with pytest.raises(InputError, match=r"me/tiny: no such directory; .*--revision v9") as found:
        local_folder("me/tiny", "v9")
    assert "\n" not in str(found.value)


def test_a_folder_has_no_revisions(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"--revision v1: .* is a folder, which has one"):
        local_folder(str(tmp_path), "v1")


def test_a_model_named_by_its_hub_id_is_kept_packed_and_mapped_by_the_next_start(
    hub: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(entries, "cache_folder", lambda: tmp_path / "cache")
    monkeypatch.setattr(entries, "LEAST_BYTES", 0)
    write_tiny_llama(hub / "snapshots" / ("a" * 40))

    def generate() -> Any:
        words = ["me/tiny", "--prompt", "5 6 7", "--weights", "int8", "--max-tokens", "3"]
        assert run(["generate", *words, "--kv-bytes", "1MiB", "--device", "cpu", "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    first = generate()
    [entry] = (tmp_path / "cache/packed").iterdir()
    assert entry.name.startswith("me-tiny-int8-")
    monkeypatch.setattr(linear_int8, "quantise", lambda *_: pytest.fail("quantised again"))
    again = generate()
    assert again["model"] == "me/tiny"
    of_first, of_again = ([one["tokens"] for one in found["answers"]] for found in (first, again))
    assert of_first == of_again
