"""EAGLE heads as they are published guess what their own layers say, and others are refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from tests.serve.engine.workloads import VOCAB, finished, greedy, tiny_engine, write_tiny_llama
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, LlamaConfig
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRotaryEmbedding

from ridgeline.errors import InputError
from ridgeline.serve.config import SpeculationConfig

SIZES: dict[str, Any] = {
    "hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2,
    "vocab_size": VOCAB, "rope_theta": 5000.0, "rms_norm_eps": 1e-5, "num_hidden_layers": 1,
}  # fmt: skip
PROMPT = [5, 17, 40, 3, 88, 21]


class Published(nn.Module):
    """The head as its authors compute it, on transformers' own layer."""

    def __init__(self, *, bias: bool) -> None:
        super().__init__()
        config = LlamaConfig(**SIZES, attn_implementation="eager")
        self.embed_tokens = nn.Embedding(VOCAB, 32)
        self.fc = nn.Linear(64, 32, bias=bias)
        layer: Any = LlamaDecoderLayer(config, 0)
        layer.input_layernorm = nn.Identity()
        self.layers = nn.ModuleList([layer])
        self._turns = LlamaRotaryEmbedding(config)

    def forward(self, embedded: Tensor, states: Tensor) -> Tensor:
        fused = self.fc(torch.cat((embedded, states), dim=-1))
        length = fused.shape[1]
        mask = torch.full((length, length), float("-inf")).triu(1)[None, None]
        turns = self._turns(fused, torch.arange(length)[None])
        return self.layers[0](fused, attention_mask=mask, position_embeddings=turns)


def publish(folder: Path, *, bias: bool, pickled: bool) -> Published:
    torch.manual_seed(3)
    head = Published(bias=bias).eval().requires_grad_(requires_grad=False)
    for one in head.parameters():
        one.data = 0.3 * torch.randn(one.shape) + (1.0 if one.ndim == 1 else 0.0)
    folder.mkdir()
    about = {**SIZES, "architectures": ["LlamaForCausalLM"], "model_type": "llama", "bias": bias}
    (folder / "config.json").write_text(json.dumps(about))
    weights = {name: one.clone() for name, one in head.state_dict().items() if "_turns" not in name}
    if pickled:
        torch.save(weights, folder / "pytorch_model.bin")
    else:
        save_file(weights, folder / "model.safetensors")
    return head


def engine_with(model: Path, head: Path) -> Any:
    asked = SpeculationConfig(kind="eagle", path=str(head), num_drafts=3, always=True)
    return tiny_engine(model, speculation=asked)


@pytest.mark.parametrize(("bias", "pickled"), [(True, True), (False, False)])
def test_a_published_head_guesses_what_its_own_layer_says(
    tmp_path: Path, *, bias: bool, pickled: bool
) -> None:
    folder = write_tiny_llama(tmp_path / "model")
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    head = publish(tmp_path / "head", bias=bias, pickled=pickled)
    engine = engine_with(folder, tmp_path / "head")
    propose, rounds = engine._speculating.drafter.propose, 0

    def compared(sequences: Any, states: Any, hidden: Any) -> Any:
        nonlocal rounds
        (found,) = propose(sequences, states, hidden)
        tokens = list(sequences[0].tokens)
        rows = model.model(torch.tensor([tokens[:-1]])).last_hidden_state
        for guess in found.tokens:
            embedded = model.get_input_embeddings()(torch.tensor([tokens[1:]]))
            ahead = head(embedded, rows)[:, -1:]
            assert guess == int(model.lm_head(ahead)[0, -1].argmax())
            tokens.append(guess)
            rows = torch.cat((rows, ahead), dim=1)
        rounds += len(found.tokens) == 3
        return [found]

    engine._speculating.drafter.propose = compared
    engine.handle(greedy("a", PROMPT, 12))
    with torch.inference_mode():
        out = finished(engine)
    assert rounds >= 4
    plain = tiny_engine(folder)
    plain.handle(greedy("a", PROMPT, 12))
    told, wanted = (
        [token for one in messages for token in one.tokens] for messages in (out, finished(plain))
    )
    assert told == wanted


def changed(**keys: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        about = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(about | keys))

    return change


def cut(folder: Path) -> None:
    whole = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(whole[:-40])


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (changed(draft_vocab_size=50), "weights of another form than config.json says"),
        (changed(num_hidden_layers=2), "of 2 layers"),
        (changed(rope_scaling={"type": "linear", "factor": 2.0}), "rope_scaling"),
        (changed(hidden_act="gelu"), "hidden_act gelu"),
        (changed(attention_bias=True), "attention_bias"),
        (changed(intermediate_size=40), "weights of another form than config.json says"),
        (changed(hidden_size="wide"), "config.json"),
        (changed(vocab_size=100), "was trained for head"),
        (cut, "model.safetensors"),
    ],
)
def test_what_is_no_head_that_is_read_is_one_line(
    tmp_path: Path, change: Callable[[Path], None], told: str
) -> None:
    publish(tmp_path / "head", bias=True, pickled=False)
    change(tmp_path / "head")
    with pytest.raises(InputError, match=told) as caught:
        engine_with(write_tiny_llama(tmp_path / "model"), tmp_path / "head")
    assert "\n" not in str(caught.value)
