"""`--engine vllm`: our flags in vLLM's words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ridgeline.errors import InputError
from ridgeline.serve.cluster import vllm
from ridgeline.serve.config import EngineConfig, SpeculationConfig

ADDRESS: dict[str, Any] = {"host": "127.0.0.1", "port": 8000, "names": ["m"]}


def command(**settings: Any) -> list[str]:
    return vllm.command(EngineConfig(model="dir", **settings), **ADDRESS)


def value(words: list[str], flag: str) -> str:
    return words[words.index(flag) + 1]


def test_the_defaults_become_a_whole_command() -> None:
    words = command()
    assert words[:3] == ["vllm", "serve", "dir"]
    assert value(words, "--port") == "8000"
    assert value(words, "--served-model-name") == "m"
    assert value(words, "--max-num-batched-tokens") == "2048"
    assert value(words, "--gpu-memory-utilization") == "0.9"
    assert "--enable-prefix-caching" in words


@pytest.mark.parametrize(
    ("settings", "flag", "expected"),
    [
        ({"dtype": "bf16"}, "--dtype", "bfloat16"),
        ({"kv_bytes": 5}, "--kv-cache-memory-bytes", "5"),
        ({"max_length": 99}, "--max-model-len", "99"),
        ({"weights": "fp8"}, "--quantization", "fp8"),
        ({"kv_dtype": "fp8"}, "--kv-cache-dtype", "fp8"),
        ({"order": "priority"}, "--scheduling-policy", "priority"),
        ({"max_sequences": 3}, "--max-num-seqs", "3"),
        ({"tp": 4}, "--tensor-parallel-size", "4"),
        ({"tp": 4, "kv_bytes": 4096}, "--kv-cache-memory-bytes", "1024"),
    ],
)
def test_flags_are_translated(settings: dict[str, Any], flag: str, expected: str) -> None:
    assert value(command(**settings), flag) == expected


def test_experts_are_dealt_out_there_too() -> None:
    assert "--enable-expert-parallel" in command(tp=2, expert_parallel=True)
    assert "--enable-expert-parallel" not in command(tp=2)


def test_switches_are_translated() -> None:
    words = command(prefix_cache=False, graphs=False, trust_remote_code=True)
    assert {"--no-enable-prefix-caching", "--enforce-eager", "--trust-remote-code"} <= set(words)


@pytest.mark.parametrize(
    "settings",
    [
        {"weights": "int4"},
        {"kv_dtype": "int8"},
        {"kv_layout": "dynamic"},
        {"batching": "static"},
        {"order": "shortest-prompt"},
        {"chunked_prefill": False},
        {"max_waiting": 7},
        {"threads": 2},
        {"device": "cpu"},
        {"debug": True},
        {"speculation": SpeculationConfig(kind="heads", path="h")},
    ],
    ids=lambda settings: next(iter(settings)),
)
def test_what_vllm_lacks_is_refused_in_one_line(settings: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="--engine vllm") as caught:
        command(**settings)
    assert "\n" not in str(caught.value)


def test_every_field_is_translated_or_refused() -> None:
    """A field that is new in EngineConfig must not be dropped."""
    translated = {
        "model", "dtype", "weights", "kv_dtype", "block_size", "kv_bytes", "memory_share",
        "max_length", "max_tokens_per_step", "max_sequences", "order", "prefix_cache",
        "speculation", "tp", "pp", "expert_parallel", "tokenizer", "adapters", "max_adapters",
        "graphs", "seed", "trust_remote_code", "compiled",  # vLLM's own default
    }  # fmt: skip
    assert translated | set(vllm._LACKS) == set(EngineConfig.__struct_fields__)


def test_speculation_is_translated() -> None:
    draft = command(speculation=SpeculationConfig(kind="draft", path="small", num_drafts=3))
    assert json.loads(value(draft, "--speculative-config")) == {
        "method": "draft_model",
        "model": "small",
        "num_speculative_tokens": 3,
    }
    ngram = command(speculation=SpeculationConfig(kind="ngram"))
    assert json.loads(value(ngram, "--speculative-config"))["prompt_lookup_max"] == 4


def test_adapters_are_named_with_the_rank_that_they_need(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text('{"r": 9, "rank_pattern": {"q": 20}}')
    words = command(adapters={"sql": str(tmp_path)})
    assert value(words, "--max-lora-rank") == "32"
    assert value(words, "--lora-modules") == f"sql={tmp_path}"
    with pytest.raises(InputError, match=r"adapter_config\.json: no such file"):
        command(adapters={"sql": "nowhere"})


def test_the_process_becomes_vllm_and_keys_stay_out_of_sight(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "vllm"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    started: list[Any] = []
    config = EngineConfig(model="dir")
    vllm.run(config, **ADDRESS, api_keys=["secret"], execute=lambda *a: started.extend(a))
    assert started[0] == str(program)
    assert "secret" not in started[1]
    assert started[2]["VLLM_API_KEY"] == "secret"
    with pytest.raises(InputError, match="one API key"):
        vllm.run(config, **ADDRESS, api_keys=["a", "b"])


def test_without_vllm_one_line_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InputError, match="pip install vllm"):
        vllm.run(EngineConfig(model="dir"), **ADDRESS)
