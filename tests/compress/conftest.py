"""Small models of random weights, as transformers saves them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

LIBRARY = Path(__file__).parents[2] / "examples" / "models" / "library"
VOCABULARY = 128

_SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}


def _config(kind: str) -> Any:
    import transformers

    match kind:
        case "llama":
            return transformers.LlamaConfig(**_SIZES)
        case "tied":
            return transformers.LlamaConfig(**_SIZES, tie_word_embeddings=True)
        case "gpt2":
            return transformers.GPT2Config(
                vocab_size=VOCABULARY, n_embd=32, n_layer=2, n_head=4, n_positions=64
            )
        case "opt":
            sizes = {**_SIZES, "ffn_dim": 64, "word_embed_proj_dim": 32}
            return transformers.OPTConfig(**sizes)
        case "mixtral":
            return transformers.MixtralConfig(**_SIZES, num_local_experts=4)
        case "qwen2moe":
            return transformers.Qwen2MoeConfig(
                **_SIZES,
                moe_intermediate_size=48,
                shared_expert_intermediate_size=64,
                num_experts=4,
                num_experts_per_tok=2,
            )
        case "gemma3":
            kinds = ["sliding_attention", "full_attention"]
            sizes = {**_SIZES, "head_dim": 8, "sliding_window": 16, "layer_types": kinds}
            return transformers.Gemma3TextConfig(**sizes)
    raise AssertionError(kind)


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """`tiny_model("llama")`: its directory. Made once; do not write into it."""
    made: dict[tuple[str, torch.dtype], Path] = {}

    def directory(kind: str, dtype: torch.dtype = torch.float32) -> Path:
        import transformers

        if (kind, dtype) not in made:
            path = tmp_path_factory.mktemp(kind)
            torch.manual_seed(0)
            model = transformers.AutoModelForCausalLM.from_config(_config(kind))
            # Weights of the initial size hardly change an output: a wrong move would not show.
            for parameter in model.parameters():
                if parameter.ndim > 1:
                    parameter.data.mul_(4.0)
                else:
                    parameter.data.add_(0.2 * torch.randn(parameter.shape))
            model.to(dtype).save_pretrained(path)
            made[kind, dtype] = path
        return made[kind, dtype]

    return directory


@pytest.fixture(scope="session")
def tokens() -> torch.Tensor:
    """[6, 40] of the small models' vocabulary."""
    generator = torch.Generator().manual_seed(1)
    return torch.randint(0, VOCABULARY, (6, 40), generator=generator)
