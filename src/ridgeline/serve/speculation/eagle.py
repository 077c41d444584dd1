"""A head that guesses the model's next hidden state, and from it the token after that.

    x_i      = fc [e(t_(i+1)); f_i]              f_i: the last hidden state after token t_i
    y_i      = x_i + attention(x_0 … x_i)        with positions turned in, keys of its own
    f^_(i+1) = y_i + mlp(norm(y_i))
    q        = softmax(output embedding · f^_(i+1))        guesses t_(i+2)

Li et al., "EAGLE", 2401.15077, section 4.1: unlike heads that look several tokens ahead from one
state, it is told which token was drawn, and goes on from its own f^ for further guesses. Embedding
and output embedding are the model's; tensors are named as in the published heads. Run by
`eagle_drafter.py`, trained by `train_eagle.py` (`ridgeline draft-heads --form eagle`).
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

from ridgeline.serve.speculation.eagle_facts import EagleFacts
from ridgeline.serve.speculation.head_files import write_head

WEIGHTS = "eagle.safetensors"
FACTS = "eagle.json"


class EagleAttention(nn.Module):
    """The four projections; what is attended to is the caller's matter."""

    def __init__(self, facts: EagleFacts, width: int) -> None:
        super().__init__()
        wide, narrow = facts.heads * facts.head_dim, facts.kv_heads * facts.head_dim
        self.q_proj = nn.Linear(width, wide, bias=False)
        self.k_proj = nn.Linear(width, narrow, bias=False)
        self.v_proj = nn.Linear(width, narrow, bias=False)
        self.o_proj = nn.Linear(wide, facts.hidden, bias=False)
        nn.init.zeros_(self.o_proj.weight)


class EagleMlp(nn.Module):
    """The gated feed-forward part of the layer."""

    def __init__(self, facts: EagleFacts) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(facts.hidden, facts.intermediate, bias=False)
        self.up_proj = nn.Linear(facts.hidden, facts.intermediate, bias=False)
        self.down_proj = nn.Linear(facts.intermediate, facts.hidden, bias=False)
        nn.init.zeros_(self.down_proj.weight)

    def forward(self, states: Tensor) -> Tensor:
        """[…, hidden] to the same."""
        gated = nn.functional.silu(self.gate_proj(states)) * self.up_proj(states)
        return self.down_proj(gated)  # type: ignore[no-any-return]


class EagleLayer(nn.Module):
    """One decoder layer without a norm before its attention, as the paper has it."""

    def __init__(self, facts: EagleFacts) -> None:
        super().__init__()
        self.self_attn = EagleAttention(facts, facts.hidden)
        self.post_attention_layernorm = nn.RMSNorm(facts.hidden, eps=facts.norm_eps)
        self.mlp = EagleMlp(facts)


class EagleHead(nn.Module):
    """The whole head of one model."""

    def __init__(self, facts: EagleFacts) -> None:
        super().__init__()
        self.facts = facts
        self.build()

    def build(self) -> None:
        """Make the parts of the head."""
        self.fc = nn.Linear(2 * self.facts.hidden, self.facts.hidden)
        self.layers = nn.ModuleList([EagleLayer(self.facts)])

    @property
    def layer(self) -> EagleLayer:
        """The head's only layer."""
        layer = self.layers[0]
        assert isinstance(layer, EagleLayer)
        return layer

    def features(self, states: Tensor) -> Tensor:
        """What is fused, [T, hidden], of the states that the model gives."""
        return states

    def logits(self, features: Tensor, output_embedding: nn.Module) -> Tensor:
        """The logits of the tokens guessed, [N, V] float32, from states guessed."""
        found: Tensor = output_embedding(features)
        return found.float()

    def fuse(self, embedded: Tensor, features: Tensor) -> Tensor:
        """What the layer reads, of the tokens drawn and the states before them, […, hidden]."""
        return self.fc(torch.cat((embedded, features), dim=-1))  # type: ignore[no-any-return]

    def read(self, fused: Tensor) -> Tensor:
        """What attention reads of what was fused."""
        return fused

    def past(self, fused: Tensor) -> Tensor:
        """What runs past attention, […, hidden]."""
        return fused

    def queries(self, fused: Tensor, positions: Tensor) -> Tensor:
        """[…, heads, head_dim], turned by their positions, […]."""
        found = self.layer.self_attn.q_proj(self.read(fused))
        return self._turned(found.unflatten(-1, (-1, self.facts.head_dim)), positions)

    def keys_values(self, fused: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Two of […, kv_heads, head_dim]; keys are turned by their positions."""
        attention, width, read = self.layer.self_attn, self.facts.head_dim, self.read(fused)
        keys = attention.k_proj(read).unflatten(-1, (-1, width))
        return self._turned(keys, positions), attention.v_proj(read).unflatten(-1, (-1, width))

    def finish(self, fused: Tensor, attended: Tensor) -> Tensor:
        """The guessed states, […, hidden], from what attention gave, […, heads · head_dim]."""
        layer = self.layer
        states = self.past(fused) + layer.self_attn.o_proj(attended)
        return states + layer.mlp(layer.post_attention_layernorm(states))  # type: ignore[no-any-return]

    def forward(self, embedded: Tensor, features: Tensor) -> Tensor:
        """Guesses for a whole text, [N, T, hidden] to the same, each from those before it."""
        fused = self.fuse(embedded, features)
        positions = torch.arange(fused.shape[1], device=fused.device).expand(fused.shape[:2])
        keys, values = self.keys_values(fused, positions)
        attended = nn.functional.scaled_dot_product_attention(
            self.queries(fused, positions).transpose(1, 2),
            keys.transpose(1, 2),
            values.transpose(1, 2),
            is_causal=True,
            enable_gqa=True,
        )
        return self.finish(fused, attended.transpose(1, 2).flatten(2))

    def save(self, folder: Path) -> None:
        """Write weights and facts; what was there before stays until all is written."""
        write_head(self, folder, WEIGHTS, FACTS)

    def _turned(self, states: Tensor, positions: Tensor) -> Tensor:
        half = self.facts.head_dim // 2
        places = torch.arange(half, device=states.device, dtype=torch.float32)
        angles = positions[..., None, None].float() * self.facts.rope_theta ** (-places / half)
        first, second = states.float().split(half, dim=-1)
        cosine, sine = angles.cos(), angles.sin()
        return torch.cat(
            (first * cosine - second * sine, second * cosine + first * sine), dim=-1
        ).to(states.dtype)
