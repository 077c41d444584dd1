"""`ridgeline generate` and `ridgeline bench decode`: their JSON, and one line on bad input."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ridgeline.cli.engine_options import engine_config, size_bytes
from ridgeline.cli.main import run
from ridgeline.errors import InputError

LIBRARY = str(Path(__file__).parents[2] / "examples/models/library")
QUICK = ["--dtype", "fp32", "--threads", "1", "--device", "cpu", "--kv-bytes", "16MiB"]


def document(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert run([*words, *QUICK, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_the_document_has_tokens_text_times_and_the_cache(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["--prompt", "import os\nimport ", "--prompt", "def main(", "--max-tokens", "9"]
    found = document(capsys, "generate", LIBRARY, *words, "--debug")
    assert set(found) == {
        "record", "model", "dtype", "device", "answers", "load_seconds", "seconds",
        "output_tokens_per_second", "steps", "draft_rounds", "drafted_tokens", "accepted_tokens",
        "cache", "memory",
    }  # fmt: skip
    first, second = found["answers"]
    assert (first["prompt"], second["prompt"]) == ("import os\nimport ", "def main(")
    assert len(first["tokens"]) == first["output_tokens"] == 9
    assert first["finish_reason"] == "length"
    assert 0.0 < first["ttft_seconds"] <= first["total_seconds"]
    assert found["cache"]["prefix_queries"] == first["prompt_tokens"] + second["prompt_tokens"]
    assert {"kv blocks", "activations"} <= {row["what"] for row in found["memory"]}


def test_decoding_is_measured_beside_reading(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = document(
        capsys, "bench", "decode", LIBRARY, "--batch", "2", "--rounds", "2", "--steps", "4",
        "--context", "20",
    )  # fmt: skip
    assert (found["batch"], found["steps"], len(found["machine_rounds"])) == (2, 8, 2)
    assert found["tokens_per_second"] == pytest.approx(2 / found["step_seconds"])
    read = (found["weight_bytes"] + found["kv_bytes"]) / found["step_seconds"]
    assert found["share"] == pytest.approx(read / found["machine_bytes_per_second"])
    # 1.07 M parameters in float32; the embedding is the head too, so all of it is read.
    assert found["weight_bytes"] == pytest.approx(4.3e6, rel=0.1)
    written = tmp_path / "decode.json"
    written.write_text(json.dumps(found))
    assert run(["compare", str(written), str(written)]) == 0


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["generate", "/nowhere", "--prompt", "a"], "/nowhere"),
        (["generate", LIBRARY, "--prompt", "a", "--dtype", "fp17"], "--dtype"),
        (["generate", LIBRARY, "--prompt", "a", "--kv-bytes", "many"], "--kv-bytes many"),
        (["generate", LIBRARY, "--prompt", "a", "--speculative", "luck"], "--speculative luck"),
        (["generate", LIBRARY, "--prompt", "a", "--speculative", "draft"], "needs a path"),
        (["generate", LIBRARY, "--prompt", "a", "--speculate-always"], "needs --speculative"),
        (["generate", LIBRARY, "--prompt", "a", "--adapter", "x"], "NAME=DIRECTORY"),
        (["bench", "decode", LIBRARY, "--batch", "0"], "--batch 0"),
    ],
)
def test_bad_input_is_one_line_with_exit_code_2(
    words: list[str], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(words) == 2
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert line in error


def test_a_config_with_a_value_of_another_kind_is_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.json").write_text(
        '{"model_type": "llama", "quantization_config": "compressed-tensors"}'
    )
    assert run(["generate", str(tmp_path), "--prompt", "a", *QUICK]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert f"{tmp_path}: config.json: a value of another kind" in line


def test_sizes_are_read_as_people_write_them() -> None:
    assert [size_bytes("--kv-bytes", text) for text in ("7", "2KiB", "1.5GB")] == [
        7, 2048, 1_500_000_000,
    ]  # fmt: skip
    with pytest.raises(InputError):
        size_bytes("--kv-bytes", "-1")


def test_options_become_the_configuration() -> None:
    config = engine_config(
        "m", speculative="draft:small", speculate_always=True, adapter=["a=dir"], max_sequences=3
    )
    assert config.speculation is not None
    assert config.speculation.always
    assert (config.speculation.path, config.adapters, config.max_sequences) == (
        "small", {"a": "dir"}, 3,
    )  # fmt: skip
