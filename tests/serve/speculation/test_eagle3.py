"""EAGLE-3 heads as they are published guess what their authors' layer says, in their own tokens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from tests.serve.engine.workloads import VOCAB, finished, greedy, tiny_engine, write_tiny_llama
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, LlamaConfig
from transformers.models.llama.modeling_llama import (
    LlamaAttention,
    LlamaMLP,
    LlamaRMSNorm,
    LlamaRotaryEmbedding,
)

from ridgeline.errors import InputError
from ridgeline.serve.config import SpeculationConfig

SIZES: dict[str, Any] = {
    "hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2,
    "vocab_size": VOCAB, "rope_theta": 5000.0, "rms_norm_eps": 1e-5, "num_hidden_layers": 1,
}  # fmt: skip
GUESSED = 40
PROMPT = [5, 17, 40, 3, 88, 21]


class Layer(nn.Module):
    """`LlamaDecoderLayeremb` of the authors, of transformers' parts."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.self_attn: Any = LlamaAttention(config, 0)
        for name, width in (("q_proj", 32), ("k_proj", 16), ("v_proj", 16)):
            setattr(self.self_attn, name, nn.Linear(64, width, bias=False))
        self.mlp = LlamaMLP(config)
        self.hidden_norm = LlamaRMSNorm(32, 1e-5)
        self.input_layernorm = LlamaRMSNorm(32, 1e-5)
        self.post_attention_layernorm = LlamaRMSNorm(32, 1e-5)

    def forward(self, embedded: Tensor, states: Tensor, mask: Tensor, turns: Any) -> Tensor:
        read = torch.cat((self.input_layernorm(embedded), self.hidden_norm(states)), dim=-1)
        found, _ = self.self_attn(read, position_embeddings=turns, attention_mask=mask)
        states = states + found
        return states + self.mlp(self.post_attention_layernorm(states))  # type: ignore[no-any-return]


class Published(nn.Module):
    """The head as its authors compute it."""

    def __init__(self) -> None:
        super().__init__()
        config = LlamaConfig(**SIZES, attn_implementation="eager")
        self.fc = nn.Linear(96, 32, bias=False)
        self.midlayer = Layer(config)
        self.norm = LlamaRMSNorm(32, 1e-5)
        self.lm_head = nn.Linear(32, GUESSED, bias=False)
        self._turns = LlamaRotaryEmbedding(config)

    def forward(self, embedded: Tensor, states: Tensor) -> Tensor:
        length = states.shape[1]
        mask = torch.full((length, length), float("-inf")).triu(1)[None, None]
        turns = self._turns(states, torch.arange(length)[None])
        return self.midlayer(embedded, states, mask, turns)  # type: ignore[no-any-return]


def publish(folder: Path, **keys: Any) -> tuple[Published, Tensor]:
    torch.manual_seed(3)
    head = Published().eval().requires_grad_(requires_grad=False)
    for one in head.parameters():
        one.data = 0.3 * torch.randn(one.shape) + (1.0 if one.ndim == 1 else 0.0)
    tokens = torch.randperm(VOCAB)[:GUESSED].sort().values
    folder.mkdir()
    about = {**SIZES, "architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": GUESSED}
    (folder / "config.json").write_text(json.dumps(about | keys))
    weights = {name: one.clone() for name, one in head.state_dict().items() if "_turns" not in name}
    weights["d2t"] = tokens - torch.arange(GUESSED)
    weights["t2d"] = torch.zeros(VOCAB, dtype=torch.bool).index_fill_(0, tokens, 1)
    save_file(weights, folder / "model.safetensors")
    return head, tokens


def engine_with(model: Path, head: Path) -> Any:
    asked = SpeculationConfig(kind="eagle", path=str(head), num_drafts=3, always=True)
    return tiny_engine(model, speculation=asked)


@pytest.mark.parametrize(
    ("keys", "layers"),
    [
        ({}, (2, 4, 5)),
        ({"eagle_aux_hidden_state_layer_ids": [1, 2, 7]}, (1, 2, 7)),
        ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 3, 4]}}, (1, 4, 5)),
    ],
)
def test_it_guesses_what_its_own_layer_says_of_three_layers_of_the_model(
    tmp_path: Path, keys: dict[str, Any], layers: tuple[int, ...]
) -> None:
    folder = write_tiny_llama(tmp_path / "model", num_hidden_layers=8)
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    head, tokens_of = publish(tmp_path / "head", **keys)
    engine = engine_with(folder, tmp_path / "head")
    propose, rounds = engine._speculating.drafter.propose, 0

    def compared(sequences: Any, states: Any, hidden: Any) -> Any:
        nonlocal rounds
        (found,) = propose(sequences, states, hidden)
        tokens = list(sequences[0].tokens)
        inside = model.model(torch.tensor([tokens[:-1]]), output_hidden_states=True).hidden_states
        rows = head.fc(torch.cat([inside[layer] for layer in layers], dim=-1))
        for guess in found.tokens:
            embedded = model.get_input_embeddings()(torch.tensor([tokens[1:]]))
            ahead = head(embedded, rows)[:, -1:]
            assert guess == int(tokens_of[head.lm_head(head.norm(ahead))[0, -1].argmax()])
            tokens.append(guess)
            rows = torch.cat((rows, ahead), dim=1)
        rounds += len(found.tokens) == 3
        return [found]

    engine._speculating.drafter.propose = compared
    engine.handle(greedy("a", PROMPT, 10))
    with torch.inference_mode():
        out = finished(engine)
    assert rounds >= 3
    plain = tiny_engine(folder)
    plain.handle(greedy("a", PROMPT, 10))
    told, wanted = (
        [token for one in messages for token in one.tokens] for messages in (out, finished(plain))
    )
    assert told == wanted


@pytest.mark.parametrize(
    ("keys", "layers", "told"),
    [
        ({}, 4, "reads inputs of layers 2, 2, 1; the model has 4"),
        ({"eagle_aux_hidden_state_layer_ids": [1, 2, 8]}, 8, "inputs of layers 1, 2, 8"),
        ({"eagle_aux_hidden_state_layer_ids": [1, 2]}, 8, "it reads 2 layers"),
        ({"draft_vocab_size": 39}, 8, "d2t is not 39 integers"),
        ({"target_hidden_size": 64}, 8, "another width than its model's"),
        ({"eagle_config": {"use_aux_hidden_state": False}}, 8, "use_aux_hidden_state"),
        ({"vocab_size": 50}, 8, "leads to tokens twice, or to none of the 50"),
    ],
)
def test_a_head_that_does_not_fit_is_one_line(
    tmp_path: Path, keys: dict[str, Any], layers: int, told: str
) -> None:
    publish(tmp_path / "head", **keys)
    with pytest.raises(InputError, match=told) as caught:
        engine_with(
            write_tiny_llama(tmp_path / "model", num_hidden_layers=layers), tmp_path / "head"
        )
    assert "\n" not in str(caught.value)
