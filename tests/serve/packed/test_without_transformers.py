"""A start from the cache builds what it can without transformers, and answers as before."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec.structs import replace
from tests.serve.engine.workloads import answers, finished, greedy, tiny_engine, write_tiny_llama
from tests.serve.http.servers import LIBRARY, chat_model
from tests.serve.model.tiny_families import tiny

from ridgeline.hardware.ceilings import cache_folder
from ridgeline.records.store import write_record
from ridgeline.serve.config import EngineConfig
from ridgeline.serve.engine.engine import ServingEngine
from ridgeline.serve.http.text import load_tokenizer
from ridgeline.serve.messages import LinearKernel
from ridgeline.serve.model import load
from ridgeline.serve.model.plain import PlainDecoder
from ridgeline.serve.packed import entries
from ridgeline.serve.packed import tokenizer as kept_tokenizers
from ridgeline.serve.packed.tokenizer import KeptTokenizer
from ridgeline.serve.weights import choice

LONG = list(range(3, 43))
CONVERSATION = [{"role": "user", "content": "What does a path have?"}]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, in which models of any size are kept."""
    monkeypatch.setattr(entries, "cache_folder", lambda: tmp_path / "cache")
    monkeypatch.setattr(entries, "LEAST_BYTES", 0)
    return tmp_path / "cache/packed"


def tokens(engine: ServingEngine) -> Any:
    """Two prompts, one of them longer than a window and than a step."""
    engine.handle(greedy("a", LONG, 12))
    engine.handle(greedy("b", [5, 6, 7], 12))
    return answers(finished(engine))


def without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("read_model", "register"):
        monkeypatch.setattr(load, name, lambda *_, name=name: pytest.fail(name))


@pytest.mark.sweep("qwen3-ridgeline", "llama-torch")
@pytest.mark.parametrize("kernel", ["ridgeline", "torch"])
@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "qwen3"])
def test_a_llama_by_its_parts_is_built_again_without_the_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, family: str, kernel: str
) -> None:
    if kernel == "torch":
        chosen = LinearKernel(weights="float32", kernel="torch", why="measured")
        monkeypatch.setattr(choice, "_kernel_for", lambda *_: chosen)
    tiny(family).save_pretrained(tmp_path / family)
    first = tiny_engine(tmp_path / family)
    expected = tokens(first)
    without_the_library(monkeypatch)
    again = tiny_engine(tmp_path / family)
    assert isinstance(again.model.model, PlainDecoder)
    assert not isinstance(first.model.model, PlainDecoder)
    assert (again.model.direct is None) == (kernel == "torch")
    assert tokens(again) == expected


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        pytest.param("gemma", {}, marks=pytest.mark.slow),
        pytest.param("gpt2", {}, marks=pytest.mark.slow),
        pytest.param("granite", {"logits_scaling": 3.0}, marks=pytest.mark.slow),
        pytest.param(
            "llama", {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}}
        ),
    ],
)
def test_whatever_is_more_than_a_llama_is_left_to_the_library(
    tmp_path: Path, family: str, changes: dict[str, Any]
) -> None:
    tiny(family, **changes).save_pretrained(tmp_path / family)
    expected = tokens(tiny_engine(tmp_path / family))
    again = tiny_engine(tmp_path / family)
    assert not isinstance(again.model.model, PlainDecoder)
    assert tokens(again) == expected


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing:FutureWarning")
def test_adapters_fit_the_model_that_was_built_without_the_library(tmp_path: Path) -> None:
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    folder = write_tiny_llama(tmp_path / "llama")
    wanted = LoraConfig(r=4, target_modules=["q_proj", "down_proj"], init_lora_weights=False)
    torch.manual_seed(1)
    base = AutoModelForCausalLM.from_pretrained(folder)
    get_peft_model(base, wanted).save_pretrained(tmp_path / "adapter")

    def adapted(engine: ServingEngine) -> Any:
        engine.handle(replace(greedy("a", LONG, 12), adapter="one"))
        engine.handle(greedy("b", LONG, 12))
        return answers(finished(engine))

    adapters = {"one": str(tmp_path / "adapter")}
    first = adapted(tiny_engine(folder, adapters=adapters))
    again = tiny_engine(folder, adapters=adapters)
    assert isinstance(again.model.model, PlainDecoder)
    assert adapted(again) == first
    with_it, without = first.values()
    assert with_it != without


def test_a_kept_tokenizer_reads_and_writes_as_the_library_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = EngineConfig(model=str(chat_model(tmp_path)))
    whole = load_tokenizer(config)
    text = "def path(self): <s>  # Grüße,\n\treturn None</s>"
    with monkeypatch.context() as patch:
        patch.setattr(kept_tokenizers, "read_tokenizer", lambda *_, **__: pytest.fail("read"))
        kept = load_tokenizer(config)
        assert isinstance(kept, KeptTokenizer)
        for special in (True, False):
            ids = whole.backend_tokenizer.encode(text, add_special_tokens=special).ids
            assert kept.backend_tokenizer.encode(text, add_special_tokens=special).ids == ids
            for skipped in (True, False):
                expected = whole.decode(ids, skip_special_tokens=skipped)
                assert kept.decode(ids, skip_special_tokens=skipped) == expected
        same = ("chat_template", "special_tokens_map", "all_special_tokens")
        assert [getattr(kept, name) for name in same] == [getattr(whole, name) for name in same]
        assert kept.get_vocab() == whole.get_vocab()
        assert set(kept.added_tokens_decoder) == set(whole.added_tokens_decoder)
    rendered = [one.apply_chat_template(CONVERSATION, tokenize=False) for one in (kept, whole)]
    assert rendered[0] == rendered[1] != ""


@pytest.mark.parametrize("file", ["tokenizer_config.json", "chat_template.jinja"])
def test_another_template_beside_the_same_words_is_another_tokenizer(
    tmp_path: Path, file: str
) -> None:
    folder = chat_model(tmp_path)
    load_tokenizer(EngineConfig(model=str(folder)))
    if file == "chat_template.jinja":
        (folder / file).write_text("{{ messages }} of a file")
    else:
        (folder / file).write_text((folder / file).read_text().replace("assistant:", "bot:"))
    again = load_tokenizer(EngineConfig(model=str(folder)))
    assert not isinstance(again, KeptTokenizer)
    assert "bot:" in again.chat_template or "of a file" in again.chat_template


@pytest.mark.parametrize("damage", [b"", b'{"key": 1}', None], ids=["empty", "fields", "backend"])
def test_a_damaged_tokenizer_is_read_anew_with_one_line(
    cache: Path, capsys: pytest.CaptureFixture[str], damage: bytes | None
) -> None:
    config = EngineConfig(model=str(LIBRARY))
    load_tokenizer(config)
    [path] = cache.iterdir()
    whole = path.read_bytes()
    path.write_bytes(whole.replace(b'\\"model\\"', b'\\"nodel\\"') if damage is None else damage)
    capsys.readouterr()
    assert not isinstance(load_tokenizer(config), KeptTokenizer)
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith(f"ridgeline: the kept tokenizer is made anew: {path}: ")
    assert path.read_bytes() == whole


@pytest.mark.slow
def test_neither_process_of_a_warm_server_imports_transformers(tmp_path: Path) -> None:
    folder = write_tiny_llama(
        tmp_path / "llama", hidden_size=512, vocab_size=32768, num_hidden_layers=1
    )
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(LIBRARY / name, folder)
    own = tmp_path / "home/ridgeline/kernels"
    own.mkdir(parents=True)
    for file in (cache_folder() / "kernels").glob("ridgeline_*"):
        (own / file.name).symlink_to(file)
    chosen = choice.kernel_for(choice.Format("dense", torch.float32))  # measured once, and kept
    write_record(own / choice._path(choice.Format("dense", torch.float32), 1).name, chosen)
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "home")}
    options = ["--port", "0", "--threads", "1", "--dtype", "fp32"]
    imported = []
    for number in range(2):
        said = tmp_path / f"imports {number}"
        with said.open("w") as errors:
            server = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "ridgeline.cli.main",
                    "serve",
                    str(folder),
                    "--port",
                    "0",
                    *options,
                ],
                env={**environment, "PYTHONPROFILEIMPORTTIME": "1"},
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        with server:
            assert server.stdout is not None
            line = server.stdout.readline()
            server.terminate()
        assert server.returncode == 0, said.read_text()[-2000:]
        assert line.startswith("ready: ")
        imported.append(set(re.findall(r"\| +(\w+)$", said.read_text(), re.MULTILINE)))
    first, again = imported
    assert {"transformers", "accelerate"} <= first
    assert not {"transformers", "accelerate"} & again
    assert {"torch", "fastapi", "tokenizers"} <= again
