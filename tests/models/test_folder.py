"""What is wrong in a model's folder is one line, before and while a library reads it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from huggingface_hub import constants
from tests.ports import reserved_port

from ridgeline.cli import main
from ridgeline.errors import InputError, MissingExtra
from ridgeline.models.folder import check_model_folder, read_by_library, stay_offline_without_hub


@pytest.mark.parametrize(
    ("name", "content", "complaint"),
    [
        ("config.json", b"{}", "config.json: its model_type is None"),
        ("config.json", b'{"model_type": ["llama"]}', "config.json: its model_type is "),
        ("tokenizer.json", b'{"model":' * 9999, "tokenizer.json: nested deeper than"),
        ("tokenizer_config.json", b"[]", "tokenizer_config.json: Expected `object`"),
        ("generation_config.json", b"\0", "generation_config.json: byte 0 is NUL"),
        ("model.safetensors.index.json", b"", "model.safetensors.index.json: is empty"),
        ("chat_template.jinja", "{{ x }}".encode("utf-16"), "chat_template.jinja: is UTF-16"),
    ],
)
def test_a_broken_file_is_named(tmp_path: Path, name: str, content: bytes, complaint: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    check_model_folder(tmp_path)
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError) as caught:
        check_model_folder(tmp_path)
    assert str(caught.value).startswith(f"{tmp_path}/{complaint}")


def test_a_name_of_the_hub_and_a_model_of_its_own_code_are_let_through(tmp_path: Path) -> None:
    check_model_folder(Path("gpt2"))
    (tmp_path / "config.json").write_text('{"auto_map": {}}')
    check_model_folder(tmp_path)
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(InputError):
        check_model_folder(tmp_path)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ValueError("two\nlines."), "two lines"),
        (KeyError("added_tokens"), "KeyError 'added_tokens'"),
        (OSError(2, "No such file"), "[Errno 2] No such file"),
        (AssertionError(), "AssertionError"),
    ],
)
def test_whatever_a_library_raises_is_one_line(tmp_path: Path, error: Exception, said: str) -> None:
    with pytest.raises(InputError) as caught, read_by_library(tmp_path, what="its tokenizer"):
        raise error
    assert str(caught.value) == f"{tmp_path}: its tokenizer: {said}"


def test_a_hub_that_does_not_answer_is_asked_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    stay_offline_without_hub.cache_clear()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    with reserved_port() as port:
        monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{port}")
        assert main.run(["bench", "decode", "nobody/nothing"]) == 2
    said = capfd.readouterr().err
    assert "nobody/nothing: no such directory; as a hub id: it was not fetched before" in said
    assert "Retry" not in said
    assert constants.HF_HUB_OFFLINE
    stay_offline_without_hub.cache_clear()


def test_our_own_errors_and_ctrl_c_stay_as_they_are(tmp_path: Path) -> None:
    for error in (MissingExtra("torch", "train"), KeyboardInterrupt()):
        with pytest.raises(type(error)) as caught, read_by_library(tmp_path):
            raise error
        assert caught.value is error


def test_a_models_file_is_no_folder_and_no_name_of_the_hub(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF")
    with pytest.raises(InputError) as caught, read_by_library(path, option="--model"):
        raise AssertionError("nothing is asked of it")
    assert str(caught.value) == (
        f"--model {path}: is a file, where a model's folder or a name of the hub is wanted; models"
        " in one file (GGUF) are not read"
    )
