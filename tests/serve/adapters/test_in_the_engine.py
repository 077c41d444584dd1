"""Adapters as requests meet them: several in one batch of a real engine, beside PEFT alone."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM

from ridgeline.serve.config import EngineConfig
from ridgeline.serve.engine.engine import ServingEngine
from ridgeline.serve.messages import (
    Delta,
    Done,
    FromEngine,
    LoadAdapter,
    Refused,
    Sampling,
    Submit,
    UnloadAdapter,
)

# peft asks transformers by its old name.
pytestmark = pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing:FutureWarning")
MODEL = str(Path(__file__).parents[3] / "examples" / "models" / "library")
PROMPT = tuple(range(400, 440))
COUNT = 12


def write(folder: Path, seed: int) -> Path:
    from peft import LoraConfig, get_peft_model  # costs seconds, which other files need not pay

    model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
    wanted = LoraConfig(r=4, lora_alpha=8, target_modules="all-linear", task_type="CAUSAL_LM")
    model = get_peft_model(model, wanted)
    torch.manual_seed(seed)
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            nn.init.normal_(parameter, std=0.25)
    model.save_pretrained(folder)
    return folder


@torch.inference_mode()
def expected(folder: Path | None) -> list[int]:
    model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
    if folder is not None:
        from peft import PeftModel

        model = PeftModel.from_pretrained(model, folder)
    tokens = list(PROMPT)
    for _ in range(COUNT):
        tokens.append(int(model(torch.tensor([tokens])).logits[0, -1].argmax()))
    return tokens[len(PROMPT) :]


def engine_with(adapters: dict[str, Path], max_adapters: int) -> ServingEngine:
    config = EngineConfig(
        model=MODEL,
        device="cpu",
        dtype="fp32",
        threads=1,
        kv_bytes=1 << 22,
        adapters={name: str(path) for name, path in adapters.items()},
        max_adapters=max_adapters,
        debug=True,
    )
    return ServingEngine(config)


def request(name: str, adapter: str) -> Submit:
    sampling = Sampling(temperature=0.0, max_tokens=COUNT, ignore_eos=True)
    return Submit(id=name, prompt=PROMPT, sampling=sampling, adapter=adapter)


def finished(engine: ServingEngine) -> dict[str, list[int]]:
    out: dict[str, list[int]] = {}
    while engine.has_work:
        engine.step()
        for message in engine.take():
            assert isinstance(message, Delta)
            out.setdefault(message.id, []).extend(message.tokens)
    return out


def only(messages: list[FromEngine]) -> FromEngine:
    (message,) = messages
    return message


@pytest.mark.slow
def test_mixed_requests_get_what_each_would_alone(tmp_path: Path) -> None:
    folders = {name: write(tmp_path / name, seed) for seed, name in enumerate("abc")}
    engine = engine_with({"a": folders["a"], "b": folders["b"]}, 2)
    for name in ("a", "b", ""):
        engine.handle(request(f"{name}.1", name))
    # The same prompt again: no prefix is shared with another adapter's.
    answers = finished(engine)
    for name in ("", "b", "a"):
        engine.handle(request(f"{name}.2", name))
    answers |= finished(engine)
    for name in ("a", "b", ""):
        alone = expected(folders.get(name))
        assert answers[f"{name}.1"] == answers[f"{name}.2"] == alone
    assert len({tuple(tokens) for tokens in answers.values()}) == 3

    engine.handle(LoadAdapter(id="load", name="c", path=str(folders["c"])))
    assert only(engine.take()) == Done(id="load")
    engine.handle(request("c.1", "c"))
    engine.handle(UnloadAdapter(id="early", name="c"))
    assert isinstance(only(engine.take()), Refused)
    assert finished(engine)["c.1"] == expected(folders["c"])
    engine.handle(UnloadAdapter(id="late", name="c"))
    assert only(engine.take()) == Done(id="late")
    engine.handle(request("c.2", "c"))
    refused = only(engine.take())
    assert isinstance(refused, Refused)
    assert refused.status == 404
    engine.handle(request("a.3", "a"))  # evicted for c, and back from its directory
    assert finished(engine)["a.3"] == expected(folders["a"])
    engine.close()


@pytest.mark.slow
def test_more_adapters_than_fit_wait_their_turn(tmp_path: Path) -> None:
    folders = {name: write(tmp_path / name, seed) for seed, name in enumerate("ab")}
    engine = engine_with(folders, 1)
    engine.handle(request("b", "b"))
    engine.handle(request("a", "a"))
    refused = only(engine.take())
    assert isinstance(refused, Refused)
    assert refused.status == 429
    assert finished(engine)["b"] == expected(folders["b"])
    engine.handle(request("a", "a"))
    assert finished(engine)["a"] == expected(folders["a"])
    engine.close()
