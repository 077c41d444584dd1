"""Tiny models on disk, and engines driven to their end."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import torch

from ridgeline.serve.config import EngineConfig
from ridgeline.serve.engine.engine import ServingEngine
from ridgeline.serve.messages import Delta, FromEngine, Sampling, Submit

VOCAB = 97
LIBRARY = Path(__file__).parents[3] / "examples/models/library"


def write_tiny_llama(folder: Path, **changes: Any) -> Path:
    """A random Llama whose attention and positions matter."""
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": VOCAB,
        "max_position_embeddings": 256,
        "eos_token_id": 2,
        **changes,
    }
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**sizes)).eval()
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim == 2:
                weight.mul_(6.0)
    model.save_pretrained(folder)
    return folder


def tiny_engine(folder: Path, **changes: Any) -> ServingEngine:
    """In float32 on one thread, checking itself at each step."""
    settings: dict[str, Any] = {
        "model": str(folder),
        "dtype": "fp32",
        "device": "cpu",
        "threads": 1,
        "debug": True,
        "block_size": 4,
        "kv_bytes": 4 * 2**20,
        "max_tokens_per_step": 64,
        **changes,
    }
    return ServingEngine(EngineConfig(**settings))


def greedy(name: str, prompt: list[int], max_tokens: int, **sampling: Any) -> Submit:
    """Ends by length only, unless told otherwise."""
    settings = {"temperature": 0.0, "max_tokens": max_tokens, "ignore_eos": True, **sampling}
    return Submit(id=name, prompt=tuple(prompt), sampling=Sampling(**settings))


def finished(engine: ServingEngine, most_steps: int = 5000) -> list[FromEngine]:
    """Step until nothing is left; all that came out."""
    out = engine.take()
    for _ in range(most_steps):
        if not engine.has_work:
            return out
        engine.step()
        out += engine.take()
    raise AssertionError("the engine does not come to an end")


def answers(messages: list[FromEngine]) -> dict[tuple[str, int], list[int]]:
    """Tokens by request and answer; fails if anything follows an answer's last Delta."""
    tokens: dict[tuple[str, int], list[int]] = defaultdict(list)
    ended = set()
    for message in messages:
        assert isinstance(message, Delta), message
        key = (message.id, message.index)
        assert key not in ended, f"{key} goes on after its end"
        tokens[key] += message.tokens
        if message.finish_reason is not None:
            ended.add(key)
            assert message.output_tokens == len(tokens[key])
    assert ended == set(tokens), "an answer has no end"
    return dict(tokens)


def plain_greedy(model: Any, prompt: list[int], max_tokens: int) -> list[int]:
    """By whole forwards of the Hugging Face model, without any cache."""
    tokens = list(prompt)
    with torch.inference_mode():
        for _ in range(max_tokens):
            tokens.append(int(model(torch.tensor([tokens])).logits[0, -1].argmax()))
    return tokens[len(prompt) :]
