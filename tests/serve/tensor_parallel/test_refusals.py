"""What a model that is cut over ranks cannot do is said in one line, before a process starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.serve.engine.workloads import LIBRARY, tiny_engine, write_tiny_llama
from tests.serve.model.tiny_families import tiny

from ridgeline.errors import InputError
from ridgeline.serve.config import EngineConfig, SpeculationConfig
from ridgeline.serve.http.server import run_server
from ridgeline.serve.http.settings import ServerSettings

HEADS = SpeculationConfig(kind="heads", path="x")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tp": 3}, "--tp 3: the model has 2 attention heads; give --tp 2"),
        ({"tp": 2, "adapters": {"a": "folder"}}, "--tp 2: LoRA adapters are not cut"),
        ({"tp": 2, "compiled": True}, "--tp 2: --compiled is for one process"),
        ({"tp": 2, "speculation": HEADS}, "--tp 2: draft heads"),
        ({"tp": 2, "model": "no body/nothing"}, "no body/nothing: no such directory; as a hub id"),
    ],
)
def test_what_does_not_go_together_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        tiny_engine(LIBRARY, **changes)


def test_widths_and_families_that_cannot_be_cut(tmp_path: Path) -> None:
    folder = write_tiny_llama(tmp_path / "a", num_key_value_heads=2)
    with pytest.raises(InputError, match="has 2 key-value heads; give --tp 2"):
        tiny_engine(folder, tp=4)
    folder = write_tiny_llama(tmp_path / "b", intermediate_size=63)
    with pytest.raises(InputError, match=r"gate_proj.weight is 63 wide, which 2 does not divide"):
        tiny_engine(folder, tp=2)
    tiny("gpt2").save_pretrained(tmp_path / "c")
    with pytest.raises(InputError, match="no plan of how to cut models of the family gpt2"):
        tiny_engine(tmp_path / "c", tp=2)


def test_engines_that_hand_over_keys_and_values_are_whole() -> None:
    config = EngineConfig(model=str(LIBRARY), tp=2)

    def say(*_: object) -> None:
        raise AssertionError("it came up")

    with pytest.raises(InputError, match=r"--disaggregated: .* --tp 2"):
        run_server(config, ServerSettings(model_name="m"), on_ready=say, disaggregated=True)
