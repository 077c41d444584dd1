"""A model with two tokens that nobody should say; copied beside its weights, loaded as a user's is.

One makes its code raise, as a bug for rare input would; the other's weights are NaN, as in a broken
checkpoint. Neither is among the tokens by which an engine tries a model out.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from transformers import LlamaForCausalLM

RAISES, NAN = 2040, 2041


class PoisonedEmbedding(nn.Embedding):
    def forward(self, tokens: Tensor) -> Tensor:
        if bool((tokens == RAISES).any()):
            raise IndexError("index out of range in self")
        return super().forward(tokens)


class PoisonedForCausalLM(LlamaForCausalLM):
    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.model.embed_tokens = PoisonedEmbedding(config.vocab_size, config.hidden_size)
        self.post_init()


def write_poisoned(origin: Path, folder: Path) -> Path:
    """A model of one layer with the tokenizer and template of another."""
    import torch
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(origin)
    config.update({"num_hidden_layers": 1, "tie_word_embeddings": False})
    torch.manual_seed(0)
    model = PoisonedForCausalLM(config)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim == 2:
                weight.mul_(4.0)
        model.model.embed_tokens.weight[NAN] = float("nan")
        model.lm_head.weight[[RAISES, NAN]] = 0.0
    model.save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(origin / name, folder)
    shutil.copy(__file__, folder)
    path = folder / "config.json"
    written = json.loads(path.read_text())
    name = f"{Path(__file__).stem}.PoisonedForCausalLM"
    written |= {"auto_map": {"AutoModelForCausalLM": name}}
    path.write_text(json.dumps(written))
    return folder
