from __future__ import annotations

import pytest
import torch
from tests.compress.conftest import LIBRARY

from ridgeline.compress import material
from ridgeline.compress.material import calibration_tokens
from ridgeline.errors import InputError


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("".join(f"def function_{n}(x):\n    return x + {n}\n" for n in range(400)))
    return path


def test_pieces_come_from_all_of_the_text_and_are_the_same_for_a_seed(text):
    found = calibration_tokens(LIBRARY, text, sequences=8, length=64)
    assert found.shape == (8, 64)
    assert torch.equal(found, calibration_tokens(LIBRARY, text, sequences=8, length=64))
    assert not torch.equal(found, calibration_tokens(LIBRARY, text, sequences=8, length=64, seed=1))
    assert len({tuple(row) for row in found.tolist()}) == 8


def test_a_short_text_gives_fewer_and_too_short_a_text_is_refused(text, tmp_path):
    assert len(calibration_tokens(LIBRARY, text, sequences=10_000, length=256)) < 100
    short = tmp_path / "short.txt"
    short.write_text("x = 1\n")
    with pytest.raises(InputError, match=r"short\.txt: \d+ tokens; at least one sequence"):
        calibration_tokens(LIBRARY, short)


def test_a_folder_is_read_whole_and_an_empty_one_refused(text, tmp_path):
    assert torch.equal(
        calibration_tokens(LIBRARY, tmp_path, length=64),
        calibration_tokens(LIBRARY, text, length=64),
    )
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="no text files in it"):
        calibration_tokens(LIBRARY, tmp_path / "empty")
    with pytest.raises(InputError, match="no such file"):
        calibration_tokens(LIBRARY, tmp_path / "nowhere.txt")


def test_a_model_without_a_tokenizer_is_refused(tiny_model, text):
    with pytest.raises(InputError, match="no tokenizer in it"):
        calibration_tokens(tiny_model("llama"), text)


def test_a_long_text_is_tokenised_where_pieces_are_cut_out_and_gives_what_stands_there(
    tmp_path, monkeypatch
):
    seen = []

    class Counting:
        def __init__(self, tokenizer):
            self.tokenizer = tokenizer

        def __call__(self, texts, **kwargs):
            seen.extend(texts)
            return self.tokenizer(texts, **kwargs)

    tokenizer = material.tokenizer_of("MODEL", LIBRARY)
    monkeypatch.setattr(material, "tokenizer_of", lambda *_: Counting(tokenizer))
    long = "".join(f"def function_{n}(x):\n    return x + {n}\n" for n in range(9_000))
    (tmp_path / "long.txt").write_text(long)
    found = calibration_tokens(LIBRARY, tmp_path / "long.txt", sequences=8, length=64)
    assert sum(map(len, seen)) < len(long) / 50
    places = [long.index(tokenizer.decode(row).strip()) for row in found]
    assert [place * 8 // len(long) for place in places] == list(range(8))


@pytest.mark.parametrize("unit", ["z" * 40_000, "word" + " " * 400])
def test_a_long_text_of_few_tokens_is_looked_at_whole(tmp_path, unit):
    (tmp_path / "long.txt").write_text(unit * (400_000 // len(unit)))
    found = calibration_tokens(LIBRARY, tmp_path / "long.txt", sequences=4, length=256)
    assert found.shape == (4, 256)
