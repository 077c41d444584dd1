"""Whatever lies in an adapter's folder: one line that says what is wrong, within a time."""

from __future__ import annotations

import contextlib
import json
import os
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ridgeline.checkpoints.adapters import examine
from ridgeline.errors import InputError
from ridgeline.serve.adapters.examined import examined

LAYER = "model.layers.0.self_attn.q_proj"
CONFIG = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": ["q_proj"]}


def numbers(*shape: int) -> Any:
    return np.linspace(-1, 1, int(np.prod(shape)), dtype="<f4").reshape(shape)


def write(folder: Path, tensors: dict[str, Any] | None = None, **settings: Any) -> Path:
    """An adapter of one layer, unless other tensors are given."""
    folder.mkdir(exist_ok=True)
    (folder / "adapter_config.json").write_text(json.dumps({**CONFIG, **settings}))
    if tensors is None:
        tensors = {"A": numbers(2, 8), "B": numbers(6, 2)}
    header, data = {}, b""
    for side, tensor in tensors.items():
        name = f"base_model.model.{LAYER}.lora_{side}.weight"
        at = [len(data), len(data) + tensor.nbytes]
        header[name] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": at}
        data += tensor.tobytes()
    put(folder, header, data)
    return folder


def put(folder: Path, header: Any, data: bytes = b"") -> None:
    text = json.dumps(header).encode()
    body = struct.pack("<Q", len(text)) + text + data
    (folder / "adapter_model.safetensors").write_bytes(body)


def test_a_good_one_says_where_its_numbers_lie(tmp_path: Path) -> None:
    found = examined(str(write(tmp_path / "good")))
    (layer,) = found.layers
    assert (layer.name, layer.scaling) == (LAYER, 2.0)
    assert (layer.a.shape, layer.b.shape) == ((2, 8), (6, 2))
    assert found == examine(tmp_path / "good")


SETTINGS: list[tuple[dict[str, Any], str]] = [
    ({"lora_alpha": "4"}, "lora_alpha"),
    ({"lora_alpha": None}, "lora_alpha"),
    ({"lora_alpha": [1]}, "lora_alpha"),
    ({"r": 0}, "r is 0"),
    ({"r": -1}, "r is -1"),
    ({"r": 10**9}, "r is 1000000000"),
    ({"r": 2.5}, "`\\$.r`"),
    ({"use_rslora": "yes"}, "use_rslora"),
    ({"target_modules": "("}, "no expression"),
    ({"target_modules": 3}, "target_modules"),
    ({"target_modules": "a{99999999999999999999}"}, "no expression"),
    ({"alpha_pattern": {"(": 3}}, "no expression"),
    ({"alpha_pattern": [1]}, "alpha_pattern"),
    ({"alpha_pattern": {"q_proj": "x"}}, "alpha_pattern"),
    ({"rank_pattern": {"q_proj": None}}, "rank_pattern"),
    ({"peft_type": None}, "peft_type None"),
    ({"peft_type": ["LORA"]}, "peft_type"),
    ({"bias": {"a": 1}}, "bias"),
    ({"init_lora_weights": {}}, "init_lora_weights"),
]


@pytest.mark.parametrize(("given", "says"), SETTINGS, ids=str)
def test_a_setting_of_a_wrong_kind_is_named(
    tmp_path: Path, given: dict[str, Any], says: str
) -> None:
    with pytest.raises(InputError, match=says) as caught:
        examine(write(tmp_path / "x", **given))
    assert "\n" not in str(caught.value)
    assert str(tmp_path) in str(caught.value)


CONFIGS: dict[str, bytes] = {
    "nothing": b"",
    "a list": b"[]",
    "a word": b"null",
    "nested": b"[" * 100_000,
    "nested objects": b'{"a":' * 5000,
    "NaN": b'{"peft_type": "LORA", "lora_alpha": NaN}',
    "infinity": b'{"peft_type": "LORA", "lora_alpha": 1e999}',
    "UTF-16": json.dumps(CONFIG).encode("utf-16"),
    "NUL": b"\0" * 100,
    "binary": bytes(range(256)) * 10,
    "half a character": b'{"peft_type": "\\ud800"}',
    "long": b" " * (1 << 21),
}


@pytest.mark.parametrize("kind", CONFIGS)
def test_a_configuration_that_is_none_is_refused(tmp_path: Path, kind: str) -> None:
    folder = write(tmp_path / "x")
    (folder / "adapter_config.json").write_bytes(CONFIGS[kind])
    with pytest.raises(InputError):
        examine(folder)


def header_of(**entry: Any) -> Any:
    whole = {"dtype": "F32", "shape": [2, 8], "data_offsets": [0, 64], **entry}
    return {f"base_model.model.{LAYER}.lora_A.weight": whole}


HEADERS: dict[str, Any] = {
    "rank 0": header_of(shape=[0, 8], data_offsets=[0, 0]),
    "too large a rank": header_of(shape=[4096, 8], data_offsets=[0, 131072]),
    "three dimensions": header_of(shape=[2, 4, 2]),
    "negative": header_of(shape=[-2, -8]),
    "beyond the file": header_of(shape=[2, 1 << 40], data_offsets=[0, 1 << 43]),
    "backwards": header_of(data_offsets=[64, 0]),
    "before the file": header_of(data_offsets=[-64, 0]),
    "another size": header_of(data_offsets=[0, 60]),
    "integers": header_of(dtype="I8"),
    "an unknown kind": header_of(dtype=7),
    "no offsets": {f"{LAYER}.lora_A.weight": {"dtype": "F32"}},
    "one side": header_of(),
    "other names": {"x\0y": {"dtype": "F32", "shape": [2, 8], "data_offsets": [0, 64]}},
    "a list": [],
    "nothing": {},
}


@pytest.mark.parametrize("kind", HEADERS)
def test_a_file_of_tensors_that_is_none_is_refused(tmp_path: Path, kind: str) -> None:
    folder = write(tmp_path / "x")
    put(folder, HEADERS[kind], bytes(64))
    with pytest.raises(InputError) as caught:
        examine(folder)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_numbers_that_are_none_are_refused(tmp_path: Path, value: float) -> None:
    spoiled = numbers(6, 2)
    spoiled[5, 1] = value
    with pytest.raises(InputError, match="NaN or infinities"):
        examine(write(tmp_path / "x", {"A": numbers(2, 8), "B": spoiled}))


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_file_cut_or_changed_anywhere_is_read_or_refused(
    tmp_path: Path, data: st.DataObject
) -> None:
    folder = write(tmp_path / "x")
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        body = bytearray((folder / name).read_bytes())
        at = data.draw(st.integers(0, len(body) - 1))
        body[at:] = data.draw(st.binary(max_size=20)) + body[at + 1 :] * data.draw(st.booleans())
        (folder / name).write_bytes(body)
    with contextlib.suppress(InputError):
        examine(folder)


def a_pipe(folder: Path) -> None:
    (folder / "adapter_config.json").unlink()
    os.mkfifo(folder / "adapter_config.json")


def a_device(folder: Path) -> None:
    (folder / "adapter_model.safetensors").unlink()
    (folder / "adapter_model.safetensors").symlink_to("/dev/zero")


def a_folder(folder: Path) -> None:
    (folder / "adapter_config.json").unlink()
    (folder / "adapter_config.json").mkdir()


@pytest.mark.parametrize("instead", [a_pipe, a_device, a_folder])
def test_what_is_no_file_is_not_waited_for(tmp_path: Path, instead: Callable[[Path], None]) -> None:
    folder = write(tmp_path / "x")
    instead(folder)
    with pytest.raises(InputError, match="no regular file"):
        examine(folder)


@pytest.mark.sweep(every=5)
@pytest.mark.parametrize("path", ["/tmp/\0x", "/nowhere", "", "\n", "/" + "x" * 5000])
def test_a_path_to_nothing_is_one_line(path: str) -> None:
    with pytest.raises(InputError) as caught:
        examined(path)
    assert "\n" not in str(caught.value).replace("\n has", " has")


@pytest.mark.slow
def test_an_expression_without_end_is_given_a_time(tmp_path: Path) -> None:
    folder = write(tmp_path / "x", alpha_pattern={"([a-z._0-9]+)+X": 3})
    began = time.monotonic()
    with pytest.raises(InputError, match="took longer than 3 s") as caught:
        examined(str(folder), seconds=3.0)
    assert "alpha_pattern" in str(caught.value)
    assert time.monotonic() - began < 30.0
