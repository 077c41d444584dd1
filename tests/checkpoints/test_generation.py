"""What a model's makers say of sampling is taken, where a request could say the same."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ridgeline.checkpoints.generation import FILE, read_generation_defaults
from ridgeline.errors import InputError


def test_what_is_said_of_sampling_is_taken_and_nothing_else(tmp_path: Path) -> None:
    said = {"temperature": 0.5, "top_k": None, "max_new_tokens": 0, "do_sample": True}
    (tmp_path / FILE).write_text(json.dumps(said))
    assert read_generation_defaults(tmp_path) == {"temperature": 0.5}
    assert read_generation_defaults(tmp_path / "elsewhere") == {}


@pytest.mark.parametrize(("name", "value"), [("top_k", 1.5), ("top_p", 2), ("min_p", True)])
def test_what_no_request_could_ask_for_is_named(tmp_path: Path, name: str, value: object) -> None:
    (tmp_path / FILE).write_text(json.dumps({name: value}))
    with pytest.raises(InputError, match=f"{FILE}: {name} is"):
        read_generation_defaults(tmp_path)
